"""Bayesian regression from X and y, as arrays: posed, standardised, fitted, predicted, scored, checked and compared."""
