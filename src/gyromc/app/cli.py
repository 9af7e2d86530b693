"""The command line, `gyromc predict | run | fit | …`. Data go to standard output, everything else to standard error."""

import gc
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
import webbrowser
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperOption

from gyromc import __version__
from gyromc.app import commands  # noqa: F401  # adds its commands
from gyromc.app.output import app, prepare_streams
from gyromc.errors import DivergenceError, GyromcWarning, InvalidInput
from gyromc.show.numbers import printable
from gyromc.show.progress import interruptible, say

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"  # in a checkout; the package has none
# All arguments, `--help` too, go to the commands in the checkout.
FORWARDED = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}
PORT = 8642
PATIENCE = 1.5  # seconds that Ctrl-C may wait for the end of a step


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gyromc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


@app.command(context_settings=FORWARDED)
def bench(arguments: Annotated[list[str] | None, typer.Argument(metavar="[speed|accuracy] …")] = None) -> None:
    """Measure engines and accuracy, compared with other packages; in a checkout of the source only."""
    if not (BENCHMARKS / "bench_commands.py").is_file():
        missing = "`gyromc bench` measures a checkout of the source and is not in the installed package."
        raise InvalidInput(f"{missing} Clone gyromc and run `make bench`.")
    if str(BENCHMARKS) not in sys.path:
        sys.path.insert(0, str(BENCHMARKS))
    measuring = typer.main.get_command(importlib.import_module("bench_commands").app)
    raise typer.Exit(measuring.main(arguments or [], prog_name="gyromc bench", standalone_mode=False) or 0)


@app.command(epilog="Examples: gyromc explore --port 0 --no-browser; gyromc explore --out site/explorer")
def explore(
    port: Annotated[int, typer.Option(help="Where to listen on 127.0.0.1; 0 takes any free port.")] = PORT,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write DIR/index.html instead: no server.", metavar="DIR")] = None,
) -> None:
    """Serve a page that shows what rotation, schemes and step sizes do on two-dimensional targets. Ctrl-C ends it."""
    from gyromc.explore.server import PageServer, copy_in_one_file
    from gyromc.show.files import require_writable, write_atomically

    if out is not None:
        require_writable(out)
        write_atomically(out / "index.html", copy_in_one_file())
        print((out / "index.html").resolve())
        return
    with PageServer(port) as server:
        print(server.url, flush=True)
        say("Ctrl-C ends the server.")
        if browser:
            webbrowser.open(server.url)
        with interruptible("the server ends") as stop:
            server.timeout = 0.2  # seconds after which Ctrl-C is looked at
            while not stop:
                server.handle_request()


# Help shows `--version`, not `--version <bool>`: Typer 0.29 names the type of flags, earlier ones do not.
shown: Any = getattr(TyperOption, "display_type_rich", None)
if shown is not None:
    setattr(TyperOption, "display_type_rich", lambda self, ctx: None if self.is_flag else shown(self, ctx))  # noqa: B010


def main() -> None:
    """Run the command line as a process. After a signal it ends at once, without waiting for threads that still compute."""
    sys.unraisablehook, warnings.showwarning = _send_again, _show_warning
    # Nearly all objects that imports and compilation make stay: to look at them again and again takes a tenth of the time.
    gc.set_threshold(50_000, 20, 50)
    # Typer's Pydantic would read the metadata of every installed package in search of plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        command_line()
    except SystemExit as done:
        if isinstance(done.code, int) and (processes := sys.modules.get("gyromc.processes")) is not None:
            # Does not return where there are other processes, and the status is not 0.
            processes.leave(done.code)
        if isinstance(done.code, int) and done.code > 128:
            sys.stderr.flush()
            os._exit(done.code)
        raise


def command_line() -> None:
    """Run the command line; a wrong input ends with a message and status 2, never with a traceback."""
    for name in ("SIGTERM", "SIGHUP"):
        _end_on(name)
    try:
        prepare_streams()
        try:
            with interruptible(patience=PATIENCE) as stop:
                try:
                    app()
                # What Ctrl-C breaks, such as an import half-way, counts as Ctrl-C.
                except Exception:
                    stop.check()
                    raise
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    # The reader of a pipe has what it wants.
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except (InvalidInput, DivergenceError, OSError) as error:
        _say_error(str(error))
    except MemoryError as error:
        _say_error(f"out of memory{f' ({error})' if str(error) else ''}. Take fewer chains, parameters or rows.")
    except (RuntimeError, AssertionError, ValueError) as error:
        # JAX reads its environment when it is imported, and looks for devices when it first computes.
        places = {os.path.basename(frame.filename) for frame in traceback.extract_tb(error.__traceback__)[-2:]}
        if "backend" not in str(error) and not places & {"xla_bridge.py", "config.py"}:
            raise
        from gyromc.checks import cause

        wanted = ", ".join(f"{name}={value}" for name, value in os.environ.items() if name.startswith("JAX_"))
        _say_error(
            f"JAX has no device to compute on, or cannot read its settings, with {wanted or 'none'}: {cause(error)}."
        )


def _say_error(text: str) -> NoReturn:
    print(f"{_who()}error: {printable(text)}", file=sys.stderr)
    raise SystemExit(2) from None


def _who() -> str:
    """Which of several processes this is, before a message; nothing for the first and for one alone."""
    processes = sys.modules.get("gyromc.processes")
    return f"process {processes.index()}: " if processes is not None and processes.index() else ""


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Print a warning of gyromc as a message, without the line of code that gave it; others as Python does."""
    text = f"{_who()}warning: {printable(str(message))}\n"
    own = issubclass(category, GyromcWarning)
    (file or sys.stderr).write(text if own else warnings.formatwarning(message, category, filename, lineno, line))


def _send_again(dropped) -> None:
    """Send signals again whose exception Python drops, as in a garbage collector's callback; Ctrl-C is raised again anyway."""
    if issubclass(dropped.exc_type, SystemExit):
        again = threading.Timer(0.1, os.kill, (os.getpid(), dropped.exc_value.code - 128))
        again.daemon = True
        again.start()
    elif not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)


def _end_on(name: str) -> None:
    """Let a signal that ends the process raise `SystemExit`, so that unfinished files are removed."""

    def end(number, frame):
        raise SystemExit(128 + number)

    known, first = getattr(signal, name, None), threading.current_thread() is threading.main_thread()
    if known is not None and first and signal.getsignal(known) is signal.SIG_DFL:
        signal.signal(known, end)
