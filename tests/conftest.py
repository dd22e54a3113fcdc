"""What every test gets: no heavy import, no network, an environment of its own.

A test marked `stack` is for the real torch and Unsloth, best in a child process: it may
import them, and it shares caches under .cache, so that a rehearsal model is built once.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest

# A timed test fails on a busy machine and tells nothing: times belong in bench/.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED_CACHE = REPOSITORY / ".cache" / "tests"

HEAVY = frozenset(
    ("bitsandbytes", "peft", "torch", "transformers", "trl", "unsloth", "unsloth_zoo")
)
INTERNET = frozenset((socket.AF_INET, socket.AF_INET6))

# What a shell, a scheduler or a notebook may have left behind, and our code reads.
INHERITED = ("BOOT_", "HF_", "HUGGING", "SLURM_", "TORCHELASTIC_", "TRANSFORMERS_", "UNSLOTH_")
INHERITED_NAMES = frozenset(("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK", "WORLD_SIZE"))


class Guard:
    """Fails what a test must not do, where it does it, and again at the test's end.

    `pytest.fail` raises no `Exception`, so broad handlers do not swallow it; a thread or
    a C caller still can, hence the list.
    """

    def __init__(self) -> None:
        """Start before collection: a module that imports torch at its top loads it for all."""
        self.imports_allowed = False
        self.broken: list[str] = []

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> None:
        """Refuse a heavy import; as a finder, find nothing."""
        if not self.imports_allowed and name in HEAVY:
            self._fail(f"this test imports {name}: fake it, or mark the test `stack`")

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Refuse a connection or a name look-up that leaves this machine."""
        if event in {"socket.connect", "socket.sendto"}:
            sock, address = arguments[:2]
            internet = isinstance(sock, socket.socket) and sock.family in INTERNET
            if internet and isinstance(address, tuple) and not is_loopback(str(address[0])):
                self._fail(f"this test reaches for the network: {address}")
        elif event in {"socket.getaddrinfo", "socket.gethostbyname"}:
            host = arguments[0].decode() if isinstance(arguments[0], bytes) else arguments[0]
            if host and not is_loopback(str(host)):
                self._fail(f"this test looks up a host: {host}")

    def _fail(self, what: str) -> None:
        self.broken.append(what)
        pytest.fail(what)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine; the empty one and 0.0.0.0 are, for a client."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host in {"", "localhost"}
    return address.is_loopback or address.is_unspecified


# nohup, and a shell that starts something with `&`, hand signals down as ignored. Boots keep to
# that, as they should, and a test that sends one would wait for nothing.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)

GUARD = Guard()
sys.meta_path.insert(0, GUARD)
sys.addaudithook(GUARD.audit)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run `stack` tests last: they are slow, and what they import stays imported.

    Vendors warn at will; a warning from our own code fails every other test.
    """
    items.sort(key=lambda item: item.get_closest_marker("stack") is not None)
    for item in items:
        if item.get_closest_marker("stack"):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Set the guard for one test and all its fixtures, wider ones included."""
    GUARD.imports_allowed = item.get_closest_marker("stack") is not None
    GUARD.broken.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail a test for what it, or a fixture before it, did and swallowed."""
    result = yield
    if GUARD.broken:
        pytest.fail("; ".join(GUARD.broken))
    return result


@pytest.fixture(autouse=True, scope="module")
def _environment_is_put_back() -> Iterator[None]:
    """Undo what a module's tests and libraries set: the engine pins variables, Unsloth too."""
    kept = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture(autouse=True)
def _own_environment(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Give a test nothing inherited, and a home of its own; `stack` tests share theirs."""
    for name in os.environ:
        if name.startswith(INHERITED) or name in INHERITED_NAMES:
            monkeypatch.delenv(name)
    if request.node.get_closest_marker("stack") is None:
        home = tmp_path_factory.mktemp("home")
    else:
        home = SHARED_CACHE
        home.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # a child process has no guard
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("HF_HOME", str(home / ".cache" / "huggingface"))


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that every account can enter; those of pytest are the user's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)
