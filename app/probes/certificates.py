"""Reads the files of certificates that variables name, as the clients of the stack will.

What each client reads was tried with httpx 0.28 (the hub's), hf-xet 1.8 (its transfers), requests
2.34 and aiohttp 3.14 (data sets).
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path

from app.facts.surroundings import TrustFacts
from app.facts.words import error_text, one_line

_CLIENTS = {
    "SSL_CERT_FILE": "the hub's client",
    "SSL_CERT_DIR": "the hub's client",
    "REQUESTS_CA_BUNDLE": "requests",
    "CURL_CA_BUNDLE": "requests",
}
_KEYS = "SSLKEYLOGFILE"  # Python's ssl opens it whenever a client is made
# All authorities that browsers trust take 0.2 MB; nobody means a file a hundred times that size.
_LARGEST = 32 * 2**20
_BLOCK = re.compile(
    rb"-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----([^-]*)-----END \1-----",
)
_OTHER = re.compile(rb"-----BEGIN (?!(?:TRUSTED |X509 )?CERTIFICATE-)[A-Z0-9 ]+-----[^-]*-----END ")
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")  # what OpenSSL looks for: the subject's hash


def trust_facts(environ: Mapping[str, str]) -> tuple[TrustFacts, ...]:
    """One for each variable that is set and counts; an empty one is unset to all of them."""
    found = []
    for variable, clients in _CLIENTS.items():
        value = environ.get(variable, "")
        # httpx looks at the folder only where no file is named, requests at curl's only then too.
        stronger = {"SSL_CERT_DIR": "SSL_CERT_FILE", "CURL_CA_BUNDLE": "REQUESTS_CA_BUNDLE"}
        if not value or environ.get(stronger.get(variable, "")):
            continue
        folder = variable == "SSL_CERT_DIR" or (clients == "requests" and Path(value).is_dir())
        problem = _folder_problem(value) if folder else file_problem(Path(value))
        found.append(TrustFacts(variable, value, clients, problem))
    keys = environ.get(_KEYS)
    if keys and (problem := append_problem(keys)):
        found.append(TrustFacts(_KEYS, keys, "the hub's client", problem))
    return tuple(found)


def append_problem(name: str | None) -> str:
    """Why a program cannot add to a file of that name; empty where it can. Nothing is written."""
    if name is None:
        return ""
    try:
        path = Path(name).absolute()
        if path.is_dir() or not name:
            return "it is no file"
        there = path if path.exists() else path.parent
        if not there.exists():
            return f"there is no folder {one_line(str(there))}"
        return "" if os.access(there, os.W_OK) else f"{one_line(str(there))} cannot be written"
    except (OSError, ValueError) as error:
        return error_text(error)


def file_problem(path: Path) -> str:
    """What is wrong with a file of certificates in PEM, empty where nothing is."""
    try:
        if not path.is_file():
            return "it is no file" if path.exists() else "there is no such file"
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        return f"it cannot be read: {error_text(error)}"
    if len(content) > _LARGEST:
        return f"it is larger than {_LARGEST} bytes"
    return _pem_problem(content)


def _pem_problem(content: bytes) -> str:
    """What is wrong with the certificates in it.

    OpenSSL takes a millisecond for each, and a distribution's file has 150: it reads the first, and
    of the others the frames are judged here.
    """
    blocks = _BLOCK.findall(content)
    if not blocks:
        return "it holds no certificate in PEM"
    if len(blocks) != content.count(b"-----BEGIN "):
        others = _OTHER.findall(content)
        if len(blocks) + len(others) != content.count(b"-----BEGIN "):
            return "a certificate in it is cut off"
    for number, (_, text) in enumerate(blocks, 1):
        der = _der(text)
        if der is None:
            return f"certificate {number} of {len(blocks)} in it is damaged"
        if number == 1 and not _is_certificate(der):
            return "its first certificate is none that OpenSSL can read"
    return ""


def _der(text: bytes) -> bytes | None:
    """The bytes of a block: one ASN.1 sequence (what trust settings add comes after it)."""
    try:
        der = base64.b64decode(b"".join(text.split()), validate=True)
    except ValueError:
        return None
    if len(der) < 4 or der[0] != 0x30:  # noqa: PLR2004 - a sequence, and its length in 2 bytes
        return None
    n_bytes = der[1] & 0x7F
    length = der[1] if der[1] < 0x80 else int.from_bytes(der[2 : 2 + n_bytes], "big")  # noqa: PLR2004
    whole = length + 2 + (n_bytes if der[1] & 0x80 else 0)
    return der[:whole] if whole <= len(der) else None


def _is_certificate(der: bytes) -> bool:
    import ssl  # 10 ms, and most boots name no certificates

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=der)
    except (ssl.SSLError, ValueError):
        return False
    return True


def _folder_problem(value: str) -> str:
    """OpenSSL takes several folders, and finds a certificate by its hash only."""
    for each in value.split(":"):
        try:
            if any(_HASHED.fullmatch(entry.name) for entry in Path(each).iterdir()):
                return ""
        except (OSError, ValueError) as error:
            return f"{each} cannot be listed: {error_text(error)}"
    return "it holds no certificate under a hashed name (`openssl rehash` makes those)"
