"""Whether a fitted regression describes its data: tests of the model, not of the computation.

`residuals` looks for structure that the columns leave and for rows that depend on each other, `laws` compares the observed
responses with those that the model predicts, `design` looks at the columns alone, `checks` combines the checks, so that a correct
model is rarely called wrong, and `assess` makes them all.
"""
