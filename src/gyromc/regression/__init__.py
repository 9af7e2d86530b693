"""Bayesian regression from X and y, as arrays.

`problem` reads and checks what a user passes, `standardised` turns it into a target with one prior scale, `sampling` decides how
its posterior is computed and does it, `draws` predict, and `fit` does all of it and answers in the user's units. `scores` say how
well it predicts, `adequacy` whether the model describes the data, `effects` what it says in words that people quote, `comparing`
which family to take. `streamed` is for rows that do not fit into memory.
"""
