"""The page of `gyromc explore`: a server that sends a fixed list of files to browsers on 127.0.0.1, and a copy in one file."""

import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gyromc.checks import whole
from gyromc.errors import InvalidInput

ADDRESS = "127.0.0.1"
FOLDER = Path(__file__).parent
KINDS = {".html": "text/html", ".css": "text/css", ".mjs": "text/javascript", ".json": "application/json"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
IMPORT = re.compile(r'^import (\{[^}]*\}|\* as \w+) from "\./([\w]+)\.mjs";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)


def files() -> dict[str, Path]:
    """The files of the page by the path a browser asks for."""
    paths = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in KINDS]
    return {"/": FOLDER / "index.html", **{f"/{path.relative_to(FOLDER).as_posix()}": path for path in paths}}


class PageServer(ThreadingHTTPServer):
    """A server of the page; `url` is where it listens, `port` from 0 (any free one) to 65535."""

    daemon_threads = True

    def __init__(self, port: int):
        port = whole(port, "port", least=0, most=65535)
        self.content = {name: (path.read_bytes(), KINDS[path.suffix]) for name, path in files().items()}
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            remedy = "Pass another `--port`, or 0 for any free one."
            raise InvalidInput(f"Port {port} of {ADDRESS} cannot be used ({error.strerror}). {remedy}") from None
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}
        self.url = f"http://{ADDRESS}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of the known files, for requests that name this machine."""

    server: PageServer  # type: ignore[assignment]  # narrower than the base class says
    server_version, sys_version = "gyromc", ""

    def do_GET(self) -> None:
        status, body, kind = HTTPStatus.OK, *self.server.content.get(self.path.partition("?")[0], (b"", ""))
        if not body:
            status, body, kind = HTTPStatus.NOT_FOUND, b"No such file.\n", "text/plain"
        # another name that leads here: a page of somebody else
        if self.headers.get("Host") not in self.server.hosts:
            only = b"This server answers to 127.0.0.1 and localhost only.\n"
            status, body, kind = HTTPStatus.FORBIDDEN, only, "text/plain"
        self.send_response(status)
        kind += "; charset=utf-8" if kind.startswith("text/") else ""
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args) -> None:
        """Nothing: a line per file would hide what matters."""


def copy_in_one_file() -> str:
    """The page as one HTML file with everything in it: it opens without a server and asks for nothing."""
    read = lambda name: (FOLDER / name).read_text(encoding="utf-8")
    modules: dict[str, str] = {}

    def add(name: str) -> None:
        """Add a module as a function that returns what it exports, after those it imports."""
        if name in modules:
            return
        text = read(f"js/{name}.mjs")
        for match in IMPORT.finditer(text):
            add(match[2])
        # `import { a } from "./b.mjs"` becomes `const { a } = $b`.
        body = IMPORT.sub(lambda m: f"const {m[1].removeprefix('* as ').replace(' as ', ': ')} = ${m[2]};", text)
        names = ", ".join(EXPORT.findall(body))
        modules[name] = f"const ${name} = (() => {{\n{EXPORT.sub('', body)}return {{ {names} }};\n}})();\n"

    add("main")
    data = read("data/logistic.json").strip().replace("</", "<\\/")
    script = f'<script type="application/json" id="logistic-data">{data}</script>\n<script type="module">\n'
    script += f"{''.join(modules.values())}</script>"
    style = f"<style>\n{read('style.css')}</style>"
    page = read("index.html").replace('<link rel="stylesheet" href="style.css">', style)
    return page.replace('<script type="module" src="js/main.mjs"></script>', script)
