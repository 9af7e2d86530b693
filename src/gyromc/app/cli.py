"""The command line, `gyromc predict | run | fit | …`. Data go to standard output, everything else to standard error.

Each module in `COMMANDS` adds its commands with `register(app)`. Nothing heavy is imported until a command needs it.
"""

import sys

import typer

from gyromc.app import bench, paper, plans
from gyromc.app.fit import command as fit

COMMANDS = (plans, fit, paper, bench)

app = typer.Typer(
    name="gyromc",
    help="Non-reversible stochastic-gradient Langevin Monte Carlo: predict the error, run, compare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from gyromc import __version__

        typer.echo(f"gyromc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


for _module in COMMANDS:
    _module.register(app)


def main() -> None:
    """Run the command line; a wrong input ends with a message and status 2, never with a traceback."""
    from gyromc.errors import DivergenceError, InvalidInput

    try:
        app()
    except (InvalidInput, DivergenceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
