"""Bayesian regression from X and y, as arrays.

`problem` reads and checks what a user passes, `standardised` turns it into a target with one prior scale, `fit` computes its
posterior by the first method that applies (`conjugate`, `marginal`, the solver) and answers in the user's units, `draws` predict.
`scores` say how well it predicts, `adequacy` whether the model describes the data, `comparing` which family to take. `streamed`
is for rows that do not fit into memory.
"""
