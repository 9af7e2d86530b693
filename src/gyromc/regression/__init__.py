"""Bayesian regression from X and y, as arrays."""
