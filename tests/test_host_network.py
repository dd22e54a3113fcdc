"""Proxies and certificates: what is judged here is what the real clients make of it."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.checks.host import CHECKS
from app.facts.surroundings import Surroundings
from app.outcome import Finding, Status
from app.plan import Plan
from app.probes.certificates import file_problem, trust_facts
from app.probes.proxies import proxy_facts
from app.probes.surroundings import probe_surroundings
from tests.fakes_preflight import findings, plan_for
from tests.test_host_node import NODE

HUB = plan_for("h100", model="org/model")
# Nothing is to be fetched with these.
LOCAL = (
    plan_for("cpu"),
    plan_for("h100", model="/models/own"),
    plan_for("h100", model="org/model", download="never"),
)


def judged(check: str, surroundings: Surroundings, plan: Plan = HUB) -> Finding:
    facts = replace(NODE, surroundings=surroundings)
    return findings(CHECKS, facts, plan)[f"host.{check}"]


GOOD_PROXIES = (
    *("http://proxy:3128", "proxy:3128", "https://p:1", "HTTP://p:1", "http://[::1]:80"),
    *("http://user:p%40ss@host:1", "proxy", "http://p:1/path", "http://user:$ecret%@h:1"),
)
BAD_PROXIES = (
    *("http://proxy:abc", "ftp://p:1", "socks4://h:1", "socks://h:1", "http://user:p#ss@host:80"),
    *(" http://p:1", "'http://p:1'", '"http://p:1"', "http://[::1", "socks5://127.0.0.1:1"),
)


def httpx_takes(name: str, values: tuple[str, ...]) -> list[bool]:
    """Whether the hub's HTTP client can be made with each value."""
    code = (
        "import os, sys, httpx\n"
        "for value in sys.argv[2:]:\n"
        "    os.environ[sys.argv[1]] = value\n"
        "    try:\n        httpx.Client(); print(1)\n"
        "    except Exception: print(0)\n"
    )
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    others = {"HTTP_PROXY": "http://p:1"} if name == "NO_PROXY" else {}
    done = subprocess.run(
        [sys.executable, "-c", code, name, *values],
        env=kept | others,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line == "1" for line in done.stdout.split()]


def test_proxies_are_judged_as_the_hubs_client_takes_them() -> None:
    values = GOOD_PROXIES + BAD_PROXIES
    ours = [not proxy_facts({"HTTPS_PROXY": value})[0].problem for value in values]
    assert ours == httpx_takes("HTTPS_PROXY", values)


def test_an_address_without_a_host_is_told_though_the_client_is_made() -> None:
    """It fails at the first request, with words about a URL and not about a proxy."""
    for value in ("http://", "http:///x", "http:/p:1", "http://a b:1", "http://p:99999"):
        assert proxy_facts({"https_proxy": value})[0].problem, value


def test_exceptions_are_judged_as_the_hubs_client_takes_them() -> None:
    values = (
        *("*", "::1", "10.0.0.0/8", ".x.y", "localhost, 127.0.0.1", "a b", "*.x", "fe80::1%eth0"),
        *("http://x", "x/y", "[::1]", "[::1", "x:abc", "http://x:abc", "x:80", ","),
    )
    ours = [not proxy_facts({"NO_PROXY": value})[0].problem for value in values]
    assert ours == httpx_takes("NO_PROXY", values)


def test_a_password_is_never_said() -> None:
    for value in ("http://me:hun#ter2@h:1", "http://me:hunter2@h:abc", "socks4://me:hunter2@h"):
        (facts,) = proxy_facts({"HTTPS_PROXY": value})
        assert facts.problem
        assert "hun" not in repr(facts)
        assert "hun" not in repr(judged("proxies", Surroundings(proxies=(facts,))))


def test_the_spelling_in_lower_case_counts_and_an_empty_one_is_unset() -> None:
    both = {"https_proxy": "http://a:1", "HTTPS_PROXY": "ftp://b"}
    assert [each.variable for each in proxy_facts(both)] == ["https_proxy"]
    assert proxy_facts({"https_proxy": "", "HTTPS_PROXY": "http://b"})[0].variable == "HTTPS_PROXY"
    assert proxy_facts({"HTTPS_PROXY": ""}) == ()
    assert not proxy_facts({"ALL_PROXY": "socks5://h:1"}, socks=True)[0].problem


def test_a_bad_proxy_fails_where_something_is_fetched_and_else_warns() -> None:
    bad = probe_surroundings({"HTTPS_PROXY": "ftp://p:1"})
    found = judged("proxies", bad)
    assert found.status is Status.FAIL
    assert "HTTPS_PROXY" in found.reason
    for plan in LOCAL:
        assert judged("proxies", bad, plan).status is Status.WARN
    closed = probe_surroundings({"HTTPS_PROXY": "ftp://p:1", "HF_HUB_OFFLINE": "1"})
    assert judged("proxies", closed).status is Status.WARN
    assert judged("proxies", probe_surroundings({})).status is Status.SKIP
    good = probe_surroundings({"HTTPS_PROXY": "http://p:1"})
    assert judged("proxies", good).status is Status.PASS


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Two certificates, made here."""
    folder = tmp_path_factory.mktemp("pem")
    made = b""
    for name in ("one", "two"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", f"/CN={name}", "-keyout", folder / "key", "-out", folder / name],
            check=True, capture_output=True,
        )  # fmt: skip
        made += (folder / name).read_bytes()
    return made


def test_files_of_certificates_are_judged_as_openssl_takes_them(tmp_path: Path, pem: bytes) -> None:
    middle = pem.index(b"-----END CERT") - 70
    cases = {
        "good": pem,
        "one": pem[: pem.index(b"-----BEGIN", 10)],
        "comments": b"# Amt f\xc3\xbcr Dinge\n" + pem,
        "lines": pem.replace(b"\n", b"\r\n"),
        "cut": pem[:-200],
        "damaged": pem[: pem.rindex(b"-----BEGIN") + 100] + b"!!!!" + pem[-700:],
        "first": pem[:middle] + b"AAAA" * 4 + pem[middle + 16 :][:-400],
        "html": b"<html>404</html>",
        "empty": b"",
        "no certificate": b"-----BEGIN CERTIFICATE-----\nMAAAAA==\n-----END CERTIFICATE-----\n",
    }
    ours, theirs = {}, {}
    for name, content in cases.items():
        path = tmp_path / "file.pem"
        path.write_bytes(content)
        ours[name] = not file_problem(path)
        try:
            ssl.create_default_context(cafile=str(path))
            theirs[name] = True
        except ssl.SSLError:
            theirs[name] = False
    assert ours == theirs
    assert {name for name, good in ours.items() if good} == {"good", "one", "comments", "lines"}


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    assert file_problem(tmp_path / "none") == "there is no such file"
    assert file_problem(tmp_path) == "it is no file"
    assert file_problem(Path("a\0b"))
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(2**36)
    assert "larger" in file_problem(huge)


def test_a_missing_file_fails_by_the_variables_name_where_something_is_fetched() -> None:
    lost = probe_surroundings({"SSL_CERT_FILE": "/no/such.pem"})
    found = judged("ca_files", lost)
    assert found.status is Status.FAIL
    assert "SSL_CERT_FILE (/no/such.pem)" in found.reason
    for plan in LOCAL:
        assert judged("ca_files", lost, plan).status is Status.WARN


def test_what_only_requests_reads_warns(tmp_path: Path, pem: bytes) -> None:
    found = judged("ca_files", probe_surroundings({"REQUESTS_CA_BUNDLE": "/no/such.pem"}))
    assert found.status is Status.WARN
    assert "requests" in found.actual
    (tmp_path / "good.pem").write_bytes(pem)
    good = {"REQUESTS_CA_BUNDLE": str(tmp_path / "good.pem"), "CURL_CA_BUNDLE": "/no/such.pem"}
    assert judged("ca_files", probe_surroundings(good)).status is Status.PASS
    assert judged("ca_files", probe_surroundings({"SSL_CERT_FILE": ""})).status is Status.SKIP


def test_a_file_of_keys_that_cannot_be_written_breaks_every_client(tmp_path: Path) -> None:
    (found,) = trust_facts({"SSLKEYLOGFILE": str(tmp_path / "no" / "keys")})
    assert "there is no folder" in found.problem
    assert judged("ca_files", Surroundings(trust=(found,))).status is Status.FAIL
    assert trust_facts({"SSLKEYLOGFILE": str(tmp_path / "keys")}) == ()
    assert httpx_takes(
        "SSLKEYLOGFILE", (str(tmp_path / "no" / "keys"), str(tmp_path / "keys"))
    ) == [
        False,
        True,
    ]


def test_a_folder_of_certificates_needs_hashed_names(tmp_path: Path) -> None:
    (plain,) = trust_facts({"SSL_CERT_DIR": str(tmp_path)})
    assert "hashed name" in plain.problem
    (tmp_path / "0a1b2c3d.0").touch()
    (hashed,) = trust_facts({"SSL_CERT_DIR": f"{tmp_path}"})
    assert not hashed.problem
    (gone,) = trust_facts({"SSL_CERT_DIR": "/no/such"})
    assert "cannot be listed" in gone.problem
