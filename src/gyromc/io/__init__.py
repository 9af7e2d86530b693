"""Files: values in archives, functions by name, saved runs and models, checkpoints, and plan files."""
