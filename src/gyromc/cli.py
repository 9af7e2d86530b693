"""The command line: no logic, only commands (SPEC §6).

Receives words; hands them to the library. Nothing heavy is imported until a command needs it.
"""

import typer

from gyromc.experiments import commands

app = typer.Typer(
    name="gyromc",
    no_args_is_help=True,
    add_completion=False,
    help="Non-reversible stochastic-gradient Langevin Monte Carlo.",
)
commands.register(app)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
