"""`gyromc explore`: a page to play with dynamics, schemes and step sizes, on this machine alone."""

from pathlib import Path
from typing import Annotated

import typer

from gyromc.app.output import app

PORT = 8642


@app.command(
    epilog="Examples: gyromc explore; gyromc explore --port 0 --no-browser; gyromc explore --out site/explorer"
)
def explore(
    port: Annotated[int, typer.Option(help="Where to listen on 127.0.0.1; 0 takes any free port.")] = PORT,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    out: Annotated[
        Path | None, typer.Option(help="Write the page to DIR/index.html instead; it needs no server.", metavar="DIR")
    ] = None,
) -> None:
    """Serve a page that shows what rotation, schemes and step sizes do on two-dimensional targets. Ctrl-C ends it."""
    from gyromc.explore.server import PageServer, copy_in_one_file
    from gyromc.show.files import require_writable, write_atomically
    from gyromc.show.interruption import interruptible
    from gyromc.show.progress import say

    if out is not None:
        require_writable(out)
        write_atomically(out / "index.html", copy_in_one_file())
        print((out / "index.html").resolve())
        return
    with PageServer(port) as server:
        print(server.url, flush=True)
        say("Ctrl-C ends the server.")
        if browser:
            import webbrowser

            webbrowser.open(server.url)
        with interruptible("the server ends") as stop:
            # Seconds after which Ctrl-C is looked at.
            server.timeout = 0.2
            while not stop:
                server.handle_request()
