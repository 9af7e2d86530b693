"""What talks to other packages: one module each, imported only when asked for, each behind the extra of the same name."""
