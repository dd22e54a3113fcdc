"""Judges of the way to the hub: proxies and certificates that variables name."""

from __future__ import annotations

from app.checks import Check
from app.checks._reach import fetches
from app.facts.host import HostFacts
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped, warned
from app.plan import Plan


def proxies(facts: HostFacts, plan: Plan) -> Finding:
    """One bad proxy breaks every request: the client makes all of them when it is made."""
    found = facts.surroundings.proxies
    expected = "addresses like http://host:3128 (a password percent-encoded), or unset"
    bad = [each for each in found if each.problem]
    if not found:
        return skipped("no proxy is set")
    if not bad:
        return passed(f"{listed(each.variable for each in found)}: can be read", expected=expected)
    reason = f"{bad[0].variable} cannot be used: {bad[0].problem}"
    actual = listed((f"{each.variable}: {each.problem}" for each in bad), between="; ")
    step = f"correct or unset {listed(each.variable for each in bad)}"
    judged = failed if fetches(plan, facts) else warned
    return judged(reason, expected=expected, actual=actual, next_step=step)


def ca_files(facts: HostFacts, plan: Plan) -> Finding:
    """A file that is not mounted here is the usual one; the client's error names no variable."""
    found = facts.surroundings.trust
    expected = "files that are there, of certificates at least one in PEM, or unset"
    if not found:
        return skipped("no variable names certificates")
    bad = [each for each in found if each.problem]
    if not bad:
        return passed(
            f"certificates of {listed(each.variable for each in found)} can be read",
            expected=expected,
            actual=listed(each.path for each in found),
        )
    # The hub's client decides the boot; what requests reads is a matter of jobs.
    bad.sort(key=lambda each: each.clients == "requests")
    reason = f"{bad[0].variable} ({one_line(bad[0].path)}): {bad[0].problem}"
    actual = listed(
        (f"{each.variable}={each.path}, read by {each.clients}: {each.problem}" for each in bad),
        between="; ",
    )
    step = f"mount the file there, or correct or unset {listed(each.variable for each in bad)}"
    judged = failed if fetches(plan, facts) and bad[0].clients != "requests" else warned
    return judged(reason, expected=expected, actual=actual, next_step=step)


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.proxies",
        Fault.CONFIG,
        "httpx 0.28, the hub's HTTP client",
        proxies,
        cause="A password with / # ? or @ that is not percent-encoded, quotation marks taken into "
        "the value, or a SOCKS proxy without the package for it.",
        fix="Correct the variable. Where nothing is to be fetched (a folder as model, "
        "a whole model in the cache, BOOT_DOWNLOAD=never, HF_HUB_OFFLINE=1) it only warns.",
    ),
    Check(
        "host.ca_files",
        Fault.CONFIG,
        "OpenSSL reads it; httpx 0.28 and requests 2.34 use it",
        ca_files,
        cause="The variable names a file of the host that is not mounted in the container, or a "
        "file in another format than PEM.",
        fix="Mount the file of certificates, or unset the variable. Where nothing is to be "
        "fetched, and for variables that only requests reads, it only warns.",
    ),
)
