"""`python -m gyromc` is the command line (SPEC §6)."""

from gyromc.cli import main

main()
