"""`gyromc` and `python -m gyromc`: the command line."""


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends it as it does later."""
    try:
        from gyromc.app.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
