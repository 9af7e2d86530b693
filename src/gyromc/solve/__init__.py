"""The solver: warm up, sample, regress on zero-mean functions, check, and continue until the error is reached (T12)."""
