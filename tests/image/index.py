"""A package index that asks for a password and hands on what the machine's own index answers.

    python -m tests.image.index USER PASSWORD PORT_FILE

The build gets its address as a secret. What installs from it has used the password; afterwards the
password must be nowhere in the image. Runs as a process of its own, since tests have no network.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

_TOOLS = Path(__file__).resolve().parents[2] / ".cache" / "tools" / "bin" / "python"
_ASKED = ("Accept", "Range", "User-Agent")
_ANSWERED = ("Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "ETag")
_USUAL = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
_PATIENCE_S = 300.0


def upstream() -> str:
    """The machine's own index: what its variables or pip's configuration say, else pip's usual."""
    for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name]
    pip = [str(_TOOLS), "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(pip, capture_output=True, text=True, check=False)
    if configured.returncode == 0:
        return configured.stdout.strip()
    usual = [str(_TOOLS), "-c", _USUAL]
    return subprocess.run(usual, capture_output=True, text=True, check=True).stdout.strip()


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Handler(BaseHTTPRequestHandler):
    """One request: judged by its password, answered by the upstream."""

    protocol_version = "HTTP/1.1"
    origin = ""
    own = ""  # the upstream's password, where it has one
    wanted = ""

    def do_GET(self) -> None:
        """Hand on."""
        if self.headers.get("Authorization") != self.wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        headers = {name: value for name in _ASKED if (value := self.headers.get(name))}
        if self.own:
            headers["Authorization"] = self.own
        request = urllib.request.Request(  # noqa: S310 - the machine's own index
            self.origin + self.path, headers=headers, method=self.command
        )
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:  # noqa: S310
                self._answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            self._answer(error.code, error.headers, error.read())

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _answer(self, status: int, headers: Message, body: bytes) -> None:
        told = {name: headers[name] for name in _ANSWERED if name in headers}  # in any case
        if self.command != "HEAD":
            told["Content-Length"] = str(len(body))
        self.send_response(status)
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Say nothing: requests have no news for a test."""


def main() -> None:
    """Serve until killed. The port and the path go into a file, which is there when it is whole."""
    user, password, told = sys.argv[1:]
    parts = urlsplit(upstream())
    Handler.origin = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
    if parts.username:
        Handler.own = _basic(parts.username, parts.password or "")
    Handler.wanted = _basic(user, password)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    half = Path(told + ".half")
    half.write_text(json.dumps([server.server_port, parts.path]), encoding="utf-8")
    half.rename(told)
    server.serve_forever()


if __name__ == "__main__":
    main()
