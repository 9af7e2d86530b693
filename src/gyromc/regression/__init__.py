"""Bayesian regression from X and y, as arrays.

`posing` standardises a regression, `units` knows the way to standardised columns and back, `sampling` runs what `gyromc.tune`
chooses, `draws` predict, `fit` does all of it and answers in the user's units, `scores`
say how well it predicts; `sums` are what a linear model keeps of rows that come one part at a time.
"""
