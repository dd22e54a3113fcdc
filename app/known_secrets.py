"""The secrets that this process was given, and the forms in which they turn up in texts.

A leaf: imports only the reader of files and the names of the stages.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote

from app.probes.files import read_bytes
from app.stages import STAGES

SECRETS_DIR = Path("/run/secrets")
# A shorter "secret" is no secret, and hiding it would garble everything else.
SHORTEST = 8
# A part of a secret that was cut is looked for by so many of its characters.
PART = 12
_LARGEST = 16 * 1024  # bytes of a secret file; a key or a token is a few kB
_MOST_FILES = 64
_LONG_LINE = 16  # of a secret with several lines: a key's, not a brace or a user name

# What people call variables that hold secrets, and what such a name may end in without its value
# being one: HF_TOKEN_PATH is a file, GOOGLE_APPLICATION_CREDENTIALS too.
_NAME = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRETS?(?![A-Z])|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY"
    r"|(?:^|_)(?:TOKENS?|CREDENTIALS?|COOKIE)(?:_|$)"
    r"|(?:_|^)(?:AUTH|AUTHORIZATION|KEY|PASS|PAT)$|_PWD$|SSHPASS$",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(
    r"_(?:FILE|PATH|DIR|FOLDER|NAME|TYPE|LENGTH|LIMIT|COUNT|TTL|TIMEOUT|EXPIRES|EXPIRY|ENABLED"
    r"|URL|URI|ENDPOINT|PROVIDER|HELPER|SOCK)$",
    re.IGNORECASE,
)
_A_FILE = re.compile(r"/[\w.-]+(?:/[\w.-]+)+")
# The password of a proxy's or a mirror's URL, in a variable of any name.
_IN_URL = re.compile(r"://[^/\s:@]*:(?P<password>[^\s@]+)@")
# A word as the report itself writes them. Hidden, it would make a report that nobody can read.
_WORD = re.compile(r"[A-Za-z_]+")
_TIME = re.compile(r"[0-9]{4}-[0-9T:.+-]*")
# What is worth looking for in parts: no sentence, and no address either.
_TOKEN_LIKE = re.compile(r"\S{16,}")


def known_secrets(environ: Mapping[str, str], folder: Path | None) -> frozenset[str]:
    """All secrets of an environment and of a folder of secret files, each as it is.

    Left out, because hiding them would hide innocent text: what is shorter than `SHORTEST`, words
    that the report itself is made of, times, and paths of credentials.
    """
    found = [*_of_variables(environ), *_of_files(folder)]
    return frozenset(one for value in found for one in _pieces(value) if _can_be_hidden(one))


def _of_variables(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if "://" in value:
            for found in _IN_URL.finditer(value):
                yield found["password"]
                yield unquote(found["password"])
        if not _NAME.search(name) or _NO_SECRET.search(name):
            continue
        if not (name.upper().endswith("CREDENTIALS") and _A_FILE.fullmatch(value)):
            yield value


def _of_files(folder: Path | None) -> Iterator[str]:
    """What the files of the folder itself hold, but for those that are settings of ours.

    What cannot be read is passed over: the settings say so where it matters.
    """
    try:
        paths = sorted(folder.iterdir())[:_MOST_FILES] if folder is not None else []
    except OSError:
        return
    for path in paths:
        if path.name.upper().startswith("BOOT_"):
            continue
        try:
            yield read_bytes(path, _LARGEST)[0].decode()
        except (OSError, UnicodeDecodeError):
            continue


def _pieces(value: str) -> Iterator[str]:
    """The value without outer blanks, and long lines of its own where it has several.

    A key's lines come one by one where it is printed.
    """
    value = value.strip()
    yield value
    lines = value.split()
    if len(lines) > 1 and "\n" in value:
        yield from (line for line in lines if len(line) >= _LONG_LINE)


def _can_be_hidden(value: str) -> bool:
    if len(value) < SHORTEST or not value.strip("*") or _TIME.fullmatch(value):
        return False
    return not (_WORD.fullmatch(value) and value in _own_words())


def _own_words() -> str:
    """The report's schema and the stages: asked only where a secret is a bare word."""
    from app.report import Report

    return json.dumps(Report.model_json_schema()) + " ".join(STAGES)


def forms(secret: str) -> Iterator[str]:
    """The secret as it is, and as texts hold it: escaped, in a URL, in base64."""
    quoted = [quote(secret, safe=safe, errors="replace") for safe in ("", "/")]
    quoted.append(quote_plus(secret, errors="replace"))
    yield secret
    yield " ".join(secret.split())  # the log's lines
    yield secret.encode("utf-8", "backslashreplace").decode()
    yield from _escaped(secret)
    for one in quoted:
        yield one
        yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), one)
    data = secret.encode("utf-8", "surrogateescape")
    yield repr(data)[2:-1]
    yield from _in_base64(data)


def _escaped(secret: str) -> Iterator[str]:
    """As JSON and Python write it inside of quotes, once and twice."""
    for one in (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        yield one
        yield one.replace("/", "\\/")
        yield json.dumps(one)[1:-1]
    yield repr(secret)[1:-1]
    yield repr(repr(secret)[1:-1])[1:-1]
    yield repr(secret + "'\"")[1:-4]  # quoted in the other way
    yield ascii(secret)[1:-1]


def _in_base64(data: bytes) -> Iterator[str]:
    """Its base64 at any place of what is encoded: `user:secret` has it at one of three offsets.

    Without the first and last character, which other bytes have a share in.
    """
    for n_before in range(3):
        text = base64.b64encode(b"\0" * n_before + data).decode().rstrip("=")
        first = (0, 2, 3)[n_before]
        last = len(text) if (n_before + len(data)) % 3 == 0 else -1
        for one in (text[first:last], base64_for_urls(text[first:last])):
            if len(one) >= SHORTEST:
                yield one


def base64_for_urls(text: str) -> str:
    """In the alphabet of URLs."""
    return text.replace("+", "-").replace("/", "_")


def parts(secrets: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Secrets whose parts can be told from other text, with their first and last characters."""
    for secret in secrets:
        if "://" not in secret and _TOKEN_LIKE.fullmatch(secret):
            yield secret, secret[:PART], secret[-PART:]
