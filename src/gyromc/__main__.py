"""`python -m gyromc` is the command line."""

from gyromc.app.cli import main

if __name__ == "__main__":
    main()
