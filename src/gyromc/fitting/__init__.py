"""Fitting: a table of data and the name of a model in, coefficients and predictions with errors out (E3, E4).

`families` knows the models, `problem` a model with its data, `units` the way to standardised columns and back; `gaussian`,
`merit` and `choice` pick sampler and step size by theory, `sampling` runs them and `posterior` predicts; `regression` does all
of it and answers in the user's units, `scores` says how well.
"""
