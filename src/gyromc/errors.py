"""The exceptions and warnings of gyromc. Every message says what was wrong, what came and what to do."""


class InvalidInput(ValueError):
    """An argument cannot be used."""


class MissingExtra(ModuleNotFoundError, InvalidInput):
    """A package that an extra installs is missing; the message has the command that installs it."""


class DivergenceError(RuntimeError):
    """A chain diverged or became NaN; the message names the chain, the step and the likely cause."""


class GyromcWarning(UserWarning):
    """A warning of gyromc; the computation goes on."""
