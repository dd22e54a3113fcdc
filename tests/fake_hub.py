"""A repository of the hub behind HTTP, on this machine, as the real hub answers and as it fails.

Small files answer with git's hash as their ETag. Weights are large files: they are redirected to
the path `/cdn/`, and X-Linked-Etag (their sha256) and X-Linked-Size stand on the redirect. Ranges
are served. Xet's own protocol is not: no header names it, so the client takes plain HTTP.
"""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote

COMMIT = "a" * 40
# How a body goes wrong: it ends early, is reset half-way, or nothing comes after its half.
BodyT = Literal["short", "reset", "silent"]
LARGE = (".safetensors", ".bin")


def git_hash(content: bytes) -> str:
    """As git names it."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Hub:
    """A repository, and what it does to whom.

    `answers`: statuses to give first, in turn; `always`: to give ever after; `page`: their body.
    `of_files`: the same for files alone, as a gated repository answers: it is there for everybody;
    `of_store`: the same for where large files are redirected to. `xet`: what the service for Xet's
    tokens answers; the listing then names large files by Xet's hashes.
    `bodies`: what happens to the next bodies of large files, in turn. `silent`: connections are
    taken and nothing is said. `bytes_per_s`: how fast bodies come. `elsewhere`: where large files
    are redirected to, this server by the name of another host. `revisions`: names of the only
    commit, by repository.
    """

    files: Mapping[str, bytes]
    url: str = ""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    always: tuple[int, dict[str, str]] | None = None
    page: bytes = b'{"error": "no"}'
    of_files: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    of_store: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    xet: int | None = None
    bodies: list[BodyT] = field(default_factory=list)
    silent: bool = False
    bytes_per_s: float = 0.0
    elsewhere: str = ""
    revisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    tokens_elsewhere: set[str] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for one request."""
        if self.answers or self.always:
            status, headers = self.answers.pop(0) if self.answers else self.always or (500, {})
            return status, headers, self.page
        head = {"X-Repo-Commit": COMMIT}
        if "/xet-read-token/" in path:
            return self.xet or 404, {}, self.page
        if path.startswith("/cdn/"):
            return self._stored(path.removeprefix("/cdn/"))
        if "/tree/" in path:
            return 200, head, json.dumps(self.rows()).encode()
        if path.startswith("/api/models/"):
            return self._commit(path, head)
        return self._file(path.partition(f"/resolve/{COMMIT}/")[2], head)

    def _stored(self, name: str) -> tuple[int, dict[str, str], bytes]:
        if self.of_store:
            return *self.of_store.pop(0), self.page
        return 200, {"ETag": '"of-the-cdn"'}, self.files[name]

    def _file(self, name: str, head: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if self.of_files:
            status, headers = self.of_files.pop(0)
            return status, head | headers, self.page
        if name not in self.files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        content = self.files[name]
        if not name.endswith(LARGE):
            return 200, head | {"ETag": f'"{git_hash(content)}"'}, content
        head |= {"X-Linked-Etag": f'"{sha256(content)}"', "X-Linked-Size": str(len(content))}
        return 302, head | {"Location": f"{self.elsewhere}/cdn/{name}"}, b""

    def rows(self) -> list[dict[str, object]]:
        """The listing. The hash of a large file's pointer is no hash of its content."""
        return [
            {"type": "file", "path": name, "size": len(body), "oid": "9" * 40}
            | {"lfs": {"oid": sha256(body), "size": len(body), "pointerSize": 134}}
            | ({} if self.xet is None else {"xetHash": "1" * 64})
            if name.endswith(LARGE)
            else {"type": "file", "path": name, "size": len(body), "oid": git_hash(body)}
            for name, body in self.files.items()
        ]

    def _commit(self, path: str, head: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        repository, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        known = self.revisions.get(repository)
        if known is not None and revision and revision not in known:
            return 404, {"X-Error-Code": "RevisionNotFound"}, self.page
        told = {"id": repository, "sha": COMMIT, "siblings": []}
        return 200, head, json.dumps(told).encode()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        hub = self.hub
        path = unquote(self.path.partition("?")[0])
        hub.requests.append(f"{self.command} {path}")
        tokens = hub.tokens_elsewhere if path.startswith("/cdn/") else hub.tokens
        tokens.add(self.headers.get("Authorization", ""))
        if hub.silent:
            hub.over.wait()
            return
        status, headers, body = hub.answer(path)
        asked = self.headers.get("Range", "")
        if asked and status == 200:
            hub.ranges.append(asked)
            first = int(asked.removeprefix("bytes=").partition("-")[0])
            headers |= {"Content-Range": f"bytes {first}-{len(body) - 1}/{len(body)}"}
            status, body = 206, body[first:]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self._send(body, broken=path.startswith("/cdn/"))

    do_HEAD = do_GET  # noqa: N815

    def _send(self, body: bytes, *, broken: bool) -> None:
        how = self.hub.bodies.pop(0) if broken and self.hub.bodies else ""
        if not how:
            self._slowly(body)
            return
        self._slowly(body[: len(body) // 2])
        if how == "silent":
            self.hub.over.wait()
        elif how == "reset":
            # A linger of 0 s makes the close a reset.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True

    def _slowly(self, body: bytes) -> None:
        rate = self.hub.bytes_per_s
        piece = max(1, int(rate * 0.05)) if rate else len(body) or 1
        for at in range(0, len(body), piece):
            self.wfile.write(body[at : at + piece])
            if rate and self.hub.over.wait(0.05):
                return

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is killed, or has enough, is what these tests are about."""


@contextmanager
def serving(hub: Hub, tls: ssl.SSLContext | None = None) -> Iterator[Hub]:
    """Serve on a free port of this machine."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    scheme = "https" if tls else "http"
    hub.url = f"{scheme}://127.0.0.1:{server.server_port}"
    hub.elsewhere = f"{scheme}://localhost:{server.server_port}"
    try:
        yield hub
    finally:
        hub.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
