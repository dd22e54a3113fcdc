"""Which proxy a request to the hub passes through, in words that hold none of its credentials.

By the rules of the hub's client, httpx 0.28: the proxy of the address's scheme goes before that of
all schemes, and NO_PROXY names hosts with all that is below them. `proxies` says what is wrong with
these variables; one that is wrong is not named here, since what looks like its host may be a part
of a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from app.probes.proxies import proxy_facts


@dataclass(frozen=True, slots=True)
class Proxy:
    """The variable that counts, and the host and port that it names."""

    variable: str
    address: str


def proxy_of(environ: Mapping[str, str], url: str) -> Proxy | None:
    """The proxy on the way to an address; None for none, and for one that cannot be named."""
    good = {found.variable for found in proxy_facts(environ) if not found.problem}
    parts = urlsplit(url)
    if _passed_by(environ, parts):
        return None
    for kind in (parts.scheme, "all"):
        for name in (f"{kind}_proxy", f"{kind}_proxy".upper()):
            if environ.get(name):
                address = _address(environ[name]) if name in good else ""
                return Proxy(name, address) if address else None
    return None


def _passed_by(environ: Mapping[str, str], parts: SplitResult) -> bool:
    """Whether NO_PROXY names the host."""
    hosts = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    for host in filter(None, (one.strip().lower() for one in hosts.split(","))):
        below = "." + host.removeprefix("*").removeprefix(".")
        asked = parts.hostname or ""
        if host in {"*", asked, parts.netloc} or asked.endswith(below):
            return True
    return False


def _address(value: str) -> str:
    """Host and port of a proxy; empty where a password may stand in their place."""
    parts = urlsplit(value if "://" in value else f"http://{value}")
    if any("@" in rest for rest in (parts.path, parts.query, parts.fragment)):
        return ""
    return parts.netloc.rpartition("@")[2]
