"""What can go wrong, as types; the message says what was wrong, what came, and what to do."""


class InvalidInput(ValueError):
    """An argument that cannot be used: what was wrong, what came, what to do."""


class DivergenceError(RuntimeError):
    """A chain left the sane range or met NaN; the message names the chain, the step and the likely cause."""


class GyromcWarning(UserWarning):
    """Something the user should know that does not stop the work."""
