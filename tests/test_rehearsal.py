"""The rehearsal model: the same bytes each time, whole or absent, and usable."""

import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app import rehearsal
from app.errors import BootError
from app.outcome import Fault
from tests.tiny_models import CACHE, tiny_model

ROOT = Path(rehearsal.__file__).resolve().parents[1]
BUILD_TIMEOUT_S = 180.0  # several builds of about 10 s may share two cores
# Per packed weight: what bitsandbytes needs to unpack it again.
QUANT_STATE_PARTS = (
    *("absmax", "quant_map", "nested_absmax", "nested_quant_map"),
    "quant_state.bitsandbytes__nf4",
)


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below the folder, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def header(folder: Path) -> dict[str, dict[str, Any]]:
    """The tensor table of the folder's only safetensors file."""
    with (folder / "model.safetensors").open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        table: dict[str, dict[str, Any]] = json.loads(file.read(size))
    table.pop("__metadata__", None)
    return table


def fake_builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> dict[str, str]:
    """Puts a builder that runs `code` (with `dest`, a Path) in the place of the real one.

    Returns the environment in which it is found.
    """
    (tmp_path / "fake_builder.py").write_text(
        "import getpass, os, sys, time\nfrom pathlib import Path\ndest = Path(sys.argv[1])\n" + code
    )
    monkeypatch.setattr(rehearsal, "_BUILDER_MODULE", "fake_builder")
    return {"PYTHONPATH": str(tmp_path)}


@pytest.fixture(scope="module")
def nf4() -> Path:
    """The cached rehearsal model."""
    return tiny_model("gemma3n-nf4")


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two concurrent real builds: their fresh cache, what they made, their current folder."""
    cache, elsewhere = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("cwd")
    code = "import os, sys; from pathlib import Path; from app import rehearsal; "
    code += "print(rehearsal.ensure(Path(sys.argv[1]), os.environ, timeout_s=float(sys.argv[2])))"
    command = [sys.executable, "-c", code, str(cache), str(BUILD_TIMEOUT_S)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    children = [
        subprocess.Popen(command, cwd=elsewhere, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [child.communicate(timeout=2 * BUILD_TIMEOUT_S)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert outputs[0] == outputs[1]
    return cache, Path(outputs[0].strip()), elsewhere


def test_two_builds_are_byte_identical(nf4: Path, rebuilt: tuple[Path, Path, Path]) -> None:
    """The cached folder and a fresh one hold the same files with the same sha256."""
    assert digests(rebuilt[1]) == digests(nf4)
    assert nf4 == CACHE / rebuilt[1].name


def test_concurrent_builders_leave_one_folder(rebuilt: tuple[Path, Path, Path]) -> None:
    """Both callers get the same folder; no staging folder stays; the cwd stays empty."""
    cache, made, elsewhere = rebuilt
    assert list(cache.iterdir()) == [made]
    assert list(elsewhere.iterdir()) == []


def test_every_packed_weight_has_its_quant_state(nf4: Path) -> None:
    """47 packed weights, each uint8 with five quant-state items, all in the language model."""
    table = header(nf4)
    marker = ".quant_state.bitsandbytes__nf4"
    packed = [name.removesuffix(marker) for name in table if name.endswith(marker)]
    assert len(packed) == 47
    for name in packed:
        assert table[name]["dtype"] == "U8"
        assert all(f"{name}.{part}" in table for part in QUANT_STATE_PARTS)
        assert name.startswith("model.language_model.")
        assert ".altup." not in name


def test_kv_shared_layers_have_no_kv_projections(nf4: Path) -> None:
    """As in the real model: the last two of four layers reuse keys and values."""
    names = header(nf4)
    with_keys = [i for i in range(4) if any(f"layers.{i}.self_attn.k_proj." in n for n in names)]
    assert with_keys == [0, 1]


def test_all_three_towers_are_there(nf4: Path) -> None:
    """Language, vision and audio, below two million parameters: a file below 4 MB."""
    parts = {name.split(".")[1] for name in header(nf4)}
    towers = {"language_model", "vision_tower", "audio_tower"}
    assert parts == towers | {"embed_vision", "embed_audio"}
    assert (nf4 / "model.safetensors").stat().st_size < 4_000_000


def test_the_folder_names_no_path_of_its_builder(nf4: Path) -> None:
    """A staging path in a file would make two builds differ."""
    texts = [path.read_text() for path in nf4.iterdir() if path.suffix in {".json", ".jinja"}]
    assert texts
    assert not any(".building-" in text or str(ROOT) in text for text in texts)


def test_files_are_readable_by_another_uid(nf4: Path) -> None:
    """A shared cache may be read by a container with another uid."""
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in nf4.iterdir())


def test_chat_template_renders_and_tokenises(nf4: Path) -> None:
    """Gemma's turns, one token per marker, and the text comes back from its tokens."""
    code = """
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
messages = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "2 + 2?"}]},
    {"role": "assistant", "content": "Four."},
]
text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
ids = tokenizer(text, add_special_tokens=False).input_ids
assert tokenizer.decode(ids) == text, tokenizer.decode(ids)
assert ids.count(5) == 3 and ids.count(6) == 2, ids
print(text, end="")
"""
    command = [sys.executable, "-c", code, str(nf4)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "<bos><start_of_turn>user\nBe brief.\n\n<image_soft_token>2 + 2?<end_of_turn>\n"
        "<start_of_turn>model\nFour.<end_of_turn>\n<start_of_turn>model\n"
    )


def test_a_failing_builder_leaves_nothing_and_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a folder, then an exception: its text is in ours, the cache is empty."""
    code = "dest.mkdir(); (dest / 'config.json').touch(); raise ValueError('out of luck')"
    environ = fake_builder(monkeypatch, tmp_path, code)
    with pytest.raises(BootError, match=r"status 1: ValueError: out of luck"):
        rehearsal.ensure(tmp_path / "cache", environ, timeout_s=30)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_builder_of_a_uid_without_an_account_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.10 asks for it while it is imported, and raises where nobody knows."""
    environ = fake_builder(monkeypatch, tmp_path, "raise ValueError(getpass.getuser())")
    monkeypatch.setattr(os, "getuid", lambda: 1_000_650_000)
    with pytest.raises(BootError, match="ValueError: uid1000650000"):
        rehearsal.ensure(tmp_path / "cache", environ, timeout_s=30)


def test_a_killed_child_is_reported_as_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an out-of-memory kill looks like from here."""
    environ = fake_builder(monkeypatch, tmp_path, "dest.mkdir(); os.kill(os.getpid(), 9)")
    with pytest.raises(BootError, match="killed by signal SIGKILL"):
        rehearsal.ensure(tmp_path / "cache", environ, timeout_s=30)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_slow_builder_is_stopped_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is named, what was printed so far is shown, and no grandchild holds us."""
    code = "import subprocess; child = subprocess.Popen(['sleep', '60']); "
    code += "print(child.pid, flush=True); time.sleep(60)"
    environ = fake_builder(monkeypatch, tmp_path, code)
    began = time.monotonic()
    with pytest.raises(BootError, match=r"longer than 2 s") as caught:
        rehearsal.ensure(tmp_path / "cache", environ, timeout_s=2)
    assert time.monotonic() - began < 20
    assert list((tmp_path / "cache").iterdir()) == []
    assert caught.value.finding.fault is Fault.TEMPORARY
    grandchild = Path("/proc") / caught.value.finding.actual / "cmdline"
    while grandchild.exists() and grandchild.read_bytes():  # empty for one that nobody has reaped
        assert time.monotonic() - began < 20
        time.sleep(0.01)


def test_the_leftover_of_a_killed_parent_is_not_taken_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half staging folder neither counts nor is touched while young; an old one goes."""
    young, old = tmp_path / "cache" / ".building-young", tmp_path / "cache" / ".building-old"
    for left in (young, old):
        (left / "model").mkdir(parents=True)
    os.utime(old, (0, 0))
    environ = fake_builder(
        monkeypatch, tmp_path, "dest.mkdir(); (dest / 'config.json').write_text('{}')"
    )
    made = rehearsal.ensure(tmp_path / "cache", environ, timeout_s=30)
    assert sorted((tmp_path / "cache").iterdir()) == [young, made]
    assert (made / "config.json").read_text() == "{}"


def test_the_loser_of_a_race_returns_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both builders are held until both have started; neither raises, one folder stays."""
    code = f"""
barrier = Path({str(tmp_path)!r}) / "barrier"
barrier.mkdir(exist_ok=True)
(barrier / str(os.getpid())).touch()
while len(list(barrier.iterdir())) < 2: time.sleep(0.01)
dest.mkdir(); (dest / "config.json").write_text("{{}}")
"""
    environ = fake_builder(monkeypatch, tmp_path, code)
    with ThreadPoolExecutor(2) as pool:
        builds = [
            pool.submit(rehearsal.ensure, tmp_path / "cache", environ, timeout_s=30) for _ in "12"
        ]
        first, second = (build.result() for build in builds)
    assert list((tmp_path / "cache").iterdir()) == [first] == [second]


def test_an_unwritable_cache_is_named(tmp_path: Path) -> None:
    """A file where the cache folder should be (root can write anywhere else)."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(BootError, match=f"{tmp_path}/cache cannot be written") as caught:
        rehearsal.ensure(tmp_path / "cache", {}, timeout_s=30)
    assert caught.value.finding.fault is Fault.CONFIG


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("raise OSError(28, 'No space left on device')", Fault.READ_ERROR),
        ("raise PermissionError(13, 'Permission denied')", Fault.CONFIG),
        ("raise OSError(30, 'Read-only file system', 'x')", Fault.CONFIG),
        # As safetensors has it, and as a library may wrap it.
        ("raise ValueError('I/O error: no space (os error 28)')", Fault.READ_ERROR),
        ("raise RuntimeError('saving failed') from OSError(5, 'I/O error')", Fault.READ_ERROR),
        ("raise FileNotFoundError(2, 'gone')", Fault.INTERNAL),
        ("print('[Errno 28] said, and gone on'); raise ValueError('else')", Fault.INTERNAL),
        ("os.kill(os.getpid(), 7)", Fault.READ_ERROR),
        ("os.kill(os.getpid(), 9)", Fault.HARDWARE_MISMATCH),
        ("os.kill(os.getpid(), 40)", Fault.INTERNAL),
    ],
)
def test_a_builder_that_fails_tells_whose_fault_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, fault: Fault
) -> None:
    environ = fake_builder(monkeypatch, tmp_path, code)
    with pytest.raises(BootError, match="could not be built") as caught:
        rehearsal.ensure(tmp_path / "cache", environ, timeout_s=30)
    assert caught.value.finding.fault is fault


@pytest.mark.stack
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_disk_that_is_full_is_no_fault_of_the_image(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        with pytest.raises(BootError) as caught:
            rehearsal.ensure(tmp_path / "cache", os.environ, timeout_s=BUILD_TIMEOUT_S)
        assert list((tmp_path / "cache").iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    found = caught.value.finding
    assert (found.fault, "free space" in found.next_step) == (Fault.READ_ERROR, True)


def test_the_name_follows_source_and_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another source or another version is another folder; the same inputs are the same one."""
    source = tmp_path / "builder.py"
    source.write_text("1")
    first = rehearsal.content_key([source])
    assert rehearsal.content_key([source]) == first
    source.write_text("2")
    second = rehearsal.content_key([source])
    monkeypatch.setattr("importlib.metadata.version", lambda _package: "0")
    assert len({first, second, rehearsal.content_key([source])}) == 3


def test_a_missing_package_is_named() -> None:
    """No traceback from importlib.metadata, but the package's name."""
    with pytest.raises(BootError, match="no-such-package"):
        rehearsal.content_key([], ["no-such-package"])


def test_importing_it_loads_no_heavy_package() -> None:
    """The supervisor imports this module, and it stays below 60 MB."""
    code = "import sys, app.rehearsal, tests.tiny_models; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    roots = {name.split(".")[0] for name in done.stdout.split()}
    assert not roots & {"torch", "transformers", "numpy", "unsloth"}
