"""Closed forms and exact finite-step moments on Gaussian targets."""
