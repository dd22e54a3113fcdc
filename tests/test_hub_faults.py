"""Hubs, proxies, mirrors and stores that are not as they should be, through the real client."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.exits import ExitCode, exit_code
from app.probes.fetch import is_known
from app.probes.fetch_proxy import proxy_of
from app.probes.hub_contents import misfit
from app.probes.hub_steps import step_of
from tests.cache_stage import Asked, base_of, refused
from tests.fake_hub import COMMIT, Hub, serving
from tests.fakes_preflight import PLAIN, TOKEN, model_files, write_model

FILES = model_files(PLAIN, n_shards=2)


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A port that says this to whoever speaks first."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65536)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def certificate(folder: Path, start: str, end: str) -> Path:
    """Key and certificate of 127.0.0.1, signed by itself and valid between these times."""
    made = folder / "certificate"
    made.mkdir()
    (made / "index").touch()
    (made / "serial").write_text("01")
    config = made / "config"
    config.write_text(
        "[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=127.0.0.1\n[v3]\n"
        "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=critical,CA:TRUE\n"
        f"[ca]\ndefault_ca=c\n[c]\ndatabase={made}/index\nserial={made}/serial\n"
        f"new_certs_dir={made}\ndefault_md=sha256\npolicy=p\n[p]\nCN=supplied\n"
    )
    key, request, signed = made / "key", made / "request", made / "signed"
    asking = ["req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request]
    signing = ["ca", "-batch", "-selfsign", "-keyfile", key, "-in", request, "-out", signed]
    times = ["-startdate", start, "-enddate", end, "-extensions", "v3", "-notext"]
    for command in (asking, [*signing, *times]):
        ours = ["openssl", *map(str, command), "-config", str(config)]
        subprocess.run(ours, check=True, capture_output=True)
    both = made / "both.pem"
    both.write_bytes(signed.read_bytes() + key.read_bytes())
    return both


PAST, NOW, FUTURE, FAR = "20200101000000Z", "20240101000000Z", "20900101000000Z", "20950101000000Z"


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl to make certificates with")
@pytest.mark.parametrize(
    ("start", "end", "trusted", "code", "step"),
    [
        (NOW, FUTURE, True, None, ""),
        (NOW, FUTURE, False, ExitCode.CONFIG, "SSL_CERT_FILE"),
        (PAST, NOW, True, ExitCode.NODE_UNFIT, "clock"),
        (FUTURE, FAR, True, ExitCode.NODE_UNFIT, "clock"),
    ],
)
def test_a_certificate_is_told_by_what_is_wrong_with_it(
    tmp_path: Path, start: str, end: str, trusted: bool, code: ExitCode | None, step: str
) -> None:
    """The pool of the HTTP library hides the cause of its own exceptions."""
    made = certificate(tmp_path, start, end)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made)
    with serving(Hub(FILES), context) as hub:
        asked = Asked(tmp_path, hub.url, {"SSL_CERT_FILE": str(made)} if trusted else {})
    assert asked.code == code
    if code is not None:
        assert step in asked.first.next_step
        assert "EPERM" not in asked.first.reason
        assert asked.waits == []


def test_tls_to_a_port_that_speaks_none_is_a_setting(tmp_path: Path) -> None:
    with serving(Hub(FILES)) as hub:
        asked = Asked(tmp_path, hub.url.replace("http:", "https:"))
    assert (asked.code, asked.waits) == (ExitCode.CONFIG, [])
    assert "speaks no TLS" in asked.first.next_step


@pytest.mark.parametrize(
    ("status", "code", "step"),
    [
        ("407 Proxy Authentication Required", ExitCode.CONFIG, "user and password"),
        ("403 Forbidden", ExitCode.CONFIG, "NO_PROXY"),
        ("502 Bad Gateway", ExitCode.TEMPFAIL, "try again"),
    ],
)
def test_a_proxy_that_passes_nothing_on_is_told_by_its_status(
    tmp_path: Path, status: str, code: ExitCode, step: str
) -> None:
    with answering(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()) as port:
        proxy = {"HTTPS_PROXY": f"http://user:{TOKEN}@127.0.0.1:{port}"}
        asked = Asked(tmp_path, "https://hub.invalid", proxy)
    assert asked.code == code
    assert f"HTTP {status[:3]}" in asked.first.reason
    assert step in asked.first.next_step
    assert TOKEN not in repr(asked.facts)


def test_a_proxy_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    proxy = {"HTTPS_PROXY": f"http://user:{TOKEN}@127.0.0.1:9"}
    asked = Asked(tmp_path, "https://hub.invalid", proxy)
    assert asked.code == ExitCode.TEMPFAIL
    assert "from hub.invalid through the proxy 127.0.0.1:9: ECONNREFUSED" in asked.first.reason
    assert "see that this node reaches the proxy 127.0.0.1:9" in asked.first.next_step
    assert "correct HTTPS_PROXY" in asked.first.next_step
    assert TOKEN not in repr(asked.facts)


@pytest.mark.parametrize(
    ("environ", "url", "told"),
    [
        ({}, "https://hub.org", None),
        ({"HTTP_PROXY": "http://one:1"}, "https://hub.org", None),
        ({"HTTP_PROXY": "http://one:1"}, "http://hub.org", ("HTTP_PROXY", "one:1")),
        ({"ALL_PROXY": "socks5://one:1"}, "https://hub.org", None),
        ({"ALL_PROXY": "one:1"}, "https://hub.org", ("ALL_PROXY", "one:1")),
        (
            {"all_proxy": "http://one:1", "https_proxy": "http://u:p@two:2/"},
            "https://hub.org",
            ("https_proxy", "two:2"),
        ),
        (
            {"https_proxy": "http://one:1", "HTTPS_PROXY": "http://two:2"},
            "https://hub.org",
            ("https_proxy", "one:1"),
        ),
        ({"HTTPS_PROXY": "http://one:1", "NO_PROXY": "*"}, "https://hub.org", None),
        ({"HTTPS_PROXY": "http://one:1", "NO_PROXY": "x, .org"}, "https://hub.org", None),
        ({"HTTPS_PROXY": "http://one:1", "no_proxy": "hub.org"}, "https://hub.org", None),
        (
            {"HTTPS_PROXY": "http://one:1", "NO_PROXY": "b.org"},
            "https://hub.org",
            ("HTTPS_PROXY", "one:1"),
        ),
        ({"HTTPS_PROXY": "http://user:12/secret@one:1"}, "https://hub.org", None),
        ({"HTTPS_PROXY": "http://user:secret#@one:1"}, "https://hub.org", None),
    ],
)
def test_the_proxy_on_the_way_is_that_of_the_client_and_never_a_password(
    environ: dict[str, str], url: str, told: tuple[str, str] | None
) -> None:
    found = proxy_of(environ, url)
    assert (found and (found.variable, found.address)) == told


def test_an_address_of_the_store_that_has_expired_is_asked_for_anew(tmp_path: Path) -> None:
    """The same status of the hub itself is a refusal; a range that is not there begins anew."""
    hub = Hub(model_files(), of_store=[(400, {}), (403, {}), (416, {})])
    with serving(hub):
        asked = Asked(tmp_path, hub.url)
    assert (asked.code, len(asked.waits)) == (None, 3)


@pytest.mark.parametrize("status", [200, 401, 404])
def test_a_mirror_without_xet_is_asked_plainly(tmp_path: Path, status: int) -> None:
    """It answers to that service's path as to any it does not know."""
    with serving(Hub(FILES, xet=status)) as hub:
        asked = Asked(tmp_path, hub.url)
    assert (asked.code, len(asked.waits)) == (None, 1)
    assert "without Xet" in asked.said[-1]


@pytest.mark.parametrize("page", [b"[]", b"{}", b"3", b"null", b'{"sha": 5}', b"[" * 100_000])
def test_json_of_another_service_is_no_hub(page: bytes) -> None:
    with serving(Hub(FILES, always=(200, {}), page=page)) as hub:
        cause = refused(hub)
    assert exit_code(cause.fault) == ExitCode.CONFIG
    assert "no hub" in step_of(cause, has_token=True)


def test_an_empty_listing_is_an_absent_model_and_is_not_kept(tmp_path: Path) -> None:
    with serving(Hub({})) as hub:
        assert Asked(tmp_path, hub.url).code == ExitCode.NOINPUT
        hub.files = FILES
        assert Asked(tmp_path, hub.url).code is None


def test_an_empty_listing_that_was_kept_is_no_listing(tmp_path: Path) -> None:
    kept = base_of(tmp_path) / "trees" / f"{COMMIT}.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"format_version": 1, "files": {}}')
    with serving(Hub(FILES)) as hub:
        asked = Asked(tmp_path, hub.url)
    assert asked.code is None
    assert asked.facts.downloaded


def test_a_listing_that_leads_out_of_the_cache_is_no_hubs(tmp_path: Path) -> None:
    with serving(Hub(FILES | {"../../../x.json": b"{}"})) as hub:
        asked = Asked(tmp_path, hub.url)
    assert asked.code == ExitCode.CONFIG
    assert not list(tmp_path.rglob("x.json"))


def test_names_that_mean_something_to_patterns_are_fetched(tmp_path: Path) -> None:
    odd = {"a b.json": b"{}", "x[1].json": b"{}", "q?.json": b"{}", "100%.json": b"{}"}
    with serving(Hub(FILES | odd)) as hub:
        asked = Asked(tmp_path, hub.url)
    assert set(odd) < {entry.name for entry in asked.facts.files}


def test_a_shard_that_the_hub_itself_lacks_is_not_had_by_trying_again(tmp_path: Path) -> None:
    files = {
        name: body for name, body in FILES.items() if "00002-of" not in name or "index" in name
    }
    with serving(Hub(files)) as hub:
        for _ in range(2):  # downloaded now, then from the cache
            asked = Asked(tmp_path, hub.url)
            assert asked.code == ExitCode.DATAERR
            assert "the hub has no more" in asked.first.next_step


CONFIG, WEIGHTS = "config.json", "model.safetensors"


@pytest.mark.parametrize(
    ("names", "pickles", "told"),
    [
        ({CONFIG, WEIGHTS}, False, None),
        ({CONFIG, "pytorch_model.bin"}, True, None),
        ({CONFIG, "pytorch_model-00001-of-00002.bin"}, True, None),
        ({CONFIG, "pytorch_model.bin"}, False, "pickles"),
        ({CONFIG, "model.gguf"}, False, "GGUF"),
        ({"model.gguf", "README.md"}, False, "GGUF"),
        ({"adapter_config.json", "adapter_model.safetensors"}, False, "LoRA adapter"),
        ({"model_index.json", "unet/config.json", "unet/x.safetensors"}, False, "diffusion"),
        ({"params.json", "consolidated.safetensors"}, False, "maker"),
        ({f"sub/{CONFIG}", f"sub/{WEIGHTS}"}, False, "deeper, in sub"),
        ({CONFIG, f"sub/{WEIGHTS}"}, False, "no weights"),
        ({CONFIG, "onnx/model.onnx"}, False, "no weights"),
        ({"x.txt"}, False, "no config.json"),
        ({".gitattributes", "README.md"}, False, "no file of a model"),
        (set(), False, "no file of a model"),
    ],
)
def test_a_repository_that_is_something_else_is_told_before_a_download(
    names: set[str], pickles: bool, told: str | None
) -> None:
    found = misfit(names, pickles=pickles)
    if told is None:
        assert found is None
    else:
        assert found is not None
        assert told in found.said
        assert found.step


def test_nothing_of_a_repository_that_is_something_else_is_fetched(tmp_path: Path) -> None:
    with serving(Hub({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"})) as hub:
        asked = Asked(tmp_path, hub.url)
    assert asked.code == ExitCode.DATAERR
    assert "base model" in asked.first.next_step
    assert not any("/resolve/" in request for request in hub.requests)


def test_a_hub_that_never_answered_is_no_slow_download(tmp_path: Path) -> None:
    with serving(Hub(FILES, silent=True)) as hub:
        asked = Asked(tmp_path, hub.url, limit_s=2.0)
    assert asked.code == ExitCode.TEMPFAIL
    assert "no answer up to the deadline (BOOT_CACHE_TIMEOUT_S=2)" in asked.first.reason
    assert "network" in asked.first.next_step


@pytest.mark.parametrize(
    ("status", "headers", "known"),
    [
        (404, {}, False),
        (401, {}, False),
        (401, {"X-Error-Code": "GatedRepo"}, True),
        (403, {}, True),
    ],
)
def test_a_repository_is_known_that_the_hub_says_something_about(
    status: int, headers: dict[str, str], known: bool
) -> None:
    with serving(Hub({}, always=(status, headers))) as hub:
        assert is_known(refused(hub)) == known


def test_a_folder_is_spoken_of_where_nobody_knows_such_a_repository(tmp_path: Path) -> None:
    with serving(Hub({}, always=(404, {}))) as hub:
        asked = Asked(tmp_path, hub.url)
    assert "there is no folder" in asked.first.reason
    assert "see that HF_ENDPOINT (127.0.0.1) is the hub you mean" in asked.first.next_step
    assert asked.waits == []


def test_something_in_the_place_of_the_caches_folder_is_named(tmp_path: Path) -> None:
    base = base_of(tmp_path)
    base.mkdir(parents=True)
    (base / "blobs").write_text("x")
    with serving(Hub(FILES)) as hub:
        asked = Asked(tmp_path, hub.url)
    assert asked.code == ExitCode.CONFIG
    assert str(base / "blobs") in asked.first.reason
    assert "remove what lies there" in asked.first.next_step


def test_a_token_that_the_client_found_by_itself_is_one(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text(TOKEN)
    with serving(Hub({}, always=(401, {}))) as hub:
        asked = Asked(tmp_path, hub.url, {"HF_HOME": str(tmp_path / "home")}, token=None)
    assert asked.first.next_step.startswith("make a new HF_TOKEN")


def test_a_folder_of_the_hubs_cache_is_told_from_a_model(tmp_path: Path) -> None:
    cached = tmp_path / "models--org--tiny"
    write_model(cached / "snapshots" / COMMIT, FILES)
    asked = Asked(tmp_path, model=str(cached))
    assert asked.code == ExitCode.DATAERR
    assert "BOOT_BASE_MODEL_ID to org/tiny" in asked.first.next_step
    asked = Asked(tmp_path, model=str(tmp_path))
    assert "BOOT_BASE_MODEL_ID to org/tiny" in asked.first.next_step


def test_a_folder_of_folders_alone_is_left_to_the_checkpoint_stage(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "inner", FILES)
    asked = Asked(tmp_path, model=str(tmp_path / "models"))
    assert asked.code is None
    assert "inner" in asked.findings["cache.complete"].reason


def test_a_new_disk_with_nothing_on_it_is_an_absent_model(tmp_path: Path) -> None:
    (tmp_path / "models" / "lost+found").mkdir(parents=True)
    asked = Asked(tmp_path, model=str(tmp_path / "models"))
    assert asked.code == ExitCode.NOINPUT
