"""Whether a fitted regression describes its data: tests of the model, not of the computation.

`loo` compares models by rows left out one at a time, `residuals` and `trends` look for structure that the columns leave, `laws`
compare the observed responses with those that the model predicts, `columns` look at the design alone, `summaries` hold what people
quote, and `assess` makes all checks and combines them, so that a correct model is rarely called wrong.
"""
