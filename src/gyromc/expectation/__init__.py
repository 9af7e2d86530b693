"""`expect`: tune, run until a stated error is reached, estimate."""
