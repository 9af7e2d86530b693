"""Regressions from a table of data (E4): reading, encoding, fitting, reporting."""
