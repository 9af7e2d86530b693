"""Whether a fitted regression describes its data: tests of the model, not of the computation."""
