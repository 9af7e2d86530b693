"""Everything that chooses dynamics, oracle, step size, burn-in or run length."""
