"""Reads the variables that send a client through a proxy, by the rules of the hub's client.

That is httpx 0.28 (`_utils.get_environment_proxies`, `_config.Proxy`): it makes all proxies when a
client is made, so a bad one breaks every request, also those that would not pass through it. A
value often holds a password, so none of it is ever said again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from app.facts.surroundings import ProxyFacts

_KINDS = ("http", "https", "all")
_SOCKS = frozenset(("socks5", "socks5h"))
_SCHEMES = frozenset(("http", "https")) | _SOCKS
_BEFORE_SCHEME = re.compile(r"[\s'\"]")
_HOST = re.compile(r"[^\s'\"/?#@\\]+")
_PORT = re.compile(r"[0-9]{0,5}")


def proxy_facts(environ: Mapping[str, str], *, socks: bool | None = None) -> tuple[ProxyFacts, ...]:
    """The proxies that are set, each under the name that counts; `socks`: is its package there."""
    found = []
    for kind in _KINDS:
        name = _name_of(environ, f"{kind}_proxy")
        if name is not None:
            found.append(ProxyFacts(name, _problem(environ[name], socks=socks)))
    name = _name_of(environ, "no_proxy")
    if name is not None:
        found.append(ProxyFacts(name, _no_proxy_problem(environ[name].split(","))))
    return tuple(found)


def _name_of(environ: Mapping[str, str], name: str) -> str | None:
    """The spelling that counts: in lower case first, as urllib and curl have it. Empty is unset."""
    return next((one for one in (name, name.upper()) if environ.get(one)), None)


def _problem(value: str, *, socks: bool | None) -> str:
    """What is wrong with the address of a proxy, empty where nothing is."""
    if value != value.strip() or _BEFORE_SCHEME.match(value):
        return "it begins or ends with a blank or a quotation mark"
    scheme, found, _ = value.partition("://")
    if not found:
        if ":/" in value:
            return "it has one slash after its scheme, and not two"
        value, scheme = f"http://{value}", "http"
    scheme = scheme.lower()
    if scheme not in _SCHEMES:
        return "its scheme is none of http, https, socks5 and socks5h"
    if scheme in _SOCKS and not (find_spec("socksio") if socks is None else socks):
        return "it is a SOCKS proxy, and the package socksio is not installed"
    return _address_problem(value)


def _address_problem(value: str) -> str:
    try:
        parts = urlsplit(value)
    except ValueError:
        return "it is no address: its brackets do not match"
    if not parts.hostname or not _HOST.fullmatch(parts.hostname):
        return "it names no host (a password with / ? # or @ in it has to be percent-encoded)"
    after = parts.netloc.rpartition("@")[2].rpartition("]")[2]
    number = after.rpartition(":")[2] if ":" in after else ""
    if not _PORT.fullmatch(number) or int(number or "1") not in range(1, 65536):
        return "its port is no number from 1 to 65535 (a / ? # or @ in a password is written %XX)"
    return ""


def _no_proxy_problem(hosts: Iterable[str]) -> str:
    """A bracketed or unfinished IPv6 address, or a port that is none, breaks the client."""
    for each in hosts:
        host = each.strip().rpartition("://")[2].partition("/")[0]
        if host.startswith("["):
            return "it has an address in brackets, which the hub's client cannot read: leave them"
        name, colon, port = host.partition(":")
        if colon and ":" not in port and name and not _PORT.fullmatch(port):
            return "it has a host with a port that is no number"
    return ""
