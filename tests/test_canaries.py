"""Facts about secrets: planted in every input of whole boots, they are in no output of these.

"No output" is standard output and error, every file that the boot makes, and these files' names.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.canaries import ROOT, Cage, shaped, shapeless
from tests.settings_help import VARIABLES
from tests.tiny_models import tiny_model

SCHEDULERS = (
    *("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
    *("SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST", "SLURMD_NODENAME", "SLURM_RESTART_COUNT"),
    *("POD_NAME", "POD_NAMESPACE", "POD_UID", "NODE_NAME", "JOB_COMPLETION_INDEX"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
)
# Says a secret in every way that a library might, then fails with it.
_TELL = """
import base64, json, os, sys
from urllib.parse import quote

def tell():
    names = [name for name in ("HF_TOKEN", "DB_PASSWORD", "WANDB_API_KEY") if name in os.environ]
    for one in map(os.environ.get, names):
        print("plain", one, "in a URL", f"https://me:{one}@host/x?token={quote(one, safe='')}")
        print(json.dumps({"a": one, "b": json.dumps(one)}), repr(one), repr(one.encode()))
        print({"authorization": "Bearer " + one}, flush=True)
        for user in ("", "u", "us"):
            print(base64.b64encode((user + one).encode()).decode(), file=sys.stderr)
        half = len(one) // 2
        print("x" * 30 + one[:half] + "\\n" + one[half:], file=sys.stderr, flush=True)
    return " and ".join(map(os.environ.get, names))

def fail(*_, **__):
    told = tell()
    try:
        raise ValueError(repr(told.encode()))
    except ValueError as error:
        raise RuntimeError("it was " + "." * 100 + told) from error
"""
_TELL_NOTHING = "def tell():\n    return os.environ['HF_TOKEN'] + os.environ['DB_PASSWORD']\n\n"
LOGS = pytest.mark.parametrize("log", ["text", "json"])
TINY = {"BOOT_MAX_SEQ_LENGTH": "256"}


@pytest.fixture
def cage(tmp_path: Path) -> Cage:
    found = Cage(tmp_path)
    found.inputs.mkdir()
    return found


def given(cage: Cage, log: str = "text") -> dict[str, str]:
    """Secrets that the boot is given as such, one of them full of what must be escaped."""
    return {
        "BOOT_LOG_FORMAT": log,
        "HF_TOKEN": cage.plant("HF_TOKEN", shapeless("/+=&'%x")),
        "WANDB_API_KEY": cage.plant("WANDB_API_KEY", secrets.token_hex(20)),
        "DB_PASSWORD": cage.plant("DB_PASSWORD", shapeless("p@s/\"w'\\rd\N{EURO SIGN}z")),
    }


@LOGS
def test_every_setting_with_a_secret_pasted_into_it(cage: Cage, log: str) -> None:
    """All are refused; those that are paths are not even made."""
    named = [name for name in VARIABLES if name not in ("BOOT_LOG_FORMAT", "BOOT_REPORT_DIR")]
    pasted = {name: cage.plant(name, shaped()) for name in named}
    cage.boot({**pasted, "BOOT_LOG_FORMAT": log, f"BOOT_{cage.plant('name', shaped())}": "1"})
    assert cage.code == 78
    assert not cage.leaks()
    told = {check["id"] for check in cage.report["checks"]}
    assert {f"settings.{name}" for name in named if name != "HF_TOKEN"} <= told


@LOGS
def test_what_schedulers_say_and_where_the_caches_are(cage: Cage, log: str) -> None:
    """Twice: the second boot names a file after the first one's report."""
    settings = {name: cage.plant(name, shaped()) for name in SCHEDULERS}
    for name in ("HF_HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "CUDA_VISIBLE_DEVICES"):
        settings[name] = f"/proc/{cage.plant(name, shaped())}"
    for _ in range(2):
        cage.boot({**settings, **given(cage, log), "BOOT_STOP_AFTER": "host"})
        assert cage.report["identity"]["scheduler"]["POD_NAME"] == "***"
        assert not cage.leaks()
    assert [*cage.work.rglob("previous/*.json")]


def test_a_known_secret_in_the_name_of_the_report_folder(cage: Cage) -> None:
    """The folder is called so, and nothing else tells it."""
    secret = cage.plant("WANDB_API_KEY", shapeless())
    cage.boot(
        {"WANDB_API_KEY": secret, "BOOT_REPORT_DIR": f"for-{secret}", "BOOT_STOP_AFTER": "host"}
    )
    assert cage.code == 0
    (cage.work / f"for-{secret}").rename(cage.work / "reports")
    assert not cage.leaks()


@LOGS
def test_a_report_that_cannot_be_written(cage: Cage, log: str) -> None:
    """It goes to the log as a whole."""
    (cage.work / "out").mkdir(parents=True)
    (cage.work / "file").touch()
    pod = cage.plant("POD_NAME", shaped())
    cage.boot({"BOOT_REPORT_DIR": "file/r", "POD_NAME": f"x-{pod}", **given(cage, log)})
    assert cage.code == 73
    assert "x-***" in cage.all_text()
    assert not cage.leaks()


@LOGS
@pytest.mark.parametrize("where", ["app.probes.host", "app.settings_stage"])
def test_an_exception_and_output_of_the_torch_free_stages(cage: Cage, log: str, where: str) -> None:
    """In the child of the preflight, and in the supervisor itself."""
    name = "probe_host" if where == "app.probes.host" else "run"
    patch = f"import {where} as place\nplace.{name} = fail\n"
    if name == "run":  # the supervisor's own streams are not a child's: only the exception
        patch = _TELL_NOTHING + patch
    (cage.inputs / "sitecustomize.py").write_text(_TELL + patch)
    cage.boot({**given(cage, log), "BOOT_STOP_AFTER": "host"})
    assert cage.code == 70
    assert "it was ...." in cage.all_text()
    assert not cage.leaks()


def test_the_command_line_before_and_after_the_dashes(cage: Cage) -> None:
    secret = given(cage)
    arguments = [f"--token={cage.plant('value', shaped())}", cage.plant("name", shaped())]
    arguments += ["x" * 60 + secret["HF_TOKEN"], "--", f"/bin/{cage.plant('program', shaped())}"]
    arguments += [f"--{cage.plant('after', shaped())}", secret["HF_TOKEN"]]
    cage.boot(secret, *arguments)
    assert cage.code == 64
    assert not cage.leaks()
    cage.boot(secret, "--help")
    assert cage.code == 0
    assert not cage.leaks()


@contextmanager
def echoing(status: int, canary: str) -> Iterator[int]:
    """A server that answers with this status, and says all that it was told in body and headers."""

    class Echo(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = f"{canary} {self.path} {dict(self.headers)}".encode()
            self.send_response(status, f"no {canary}")
            self.send_header("X-Error-Message", f"token {canary} is wrong")
            self.send_header("X-Request-Id", canary)
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told if self.command == "GET" else b"")

        do_HEAD = do_GET  # noqa: N815 - the server's name for it

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "proxy", "code"),
    [(401, False, 77), (404, False, 66), (400, False, 78), (500, False, 75), (403, True, 77)],
)
def test_a_hub_that_repeats_what_it_was_told(
    cage: Cage, status: int, proxy: bool, code: int
) -> None:
    """Its address holds credentials, the proxy's too; one that fails is stopped by the deadline."""
    password = cage.plant("password", shapeless())
    settings = {**given(cage), "BOOT_BASE_MODEL_ID": "org/model", "BOOT_STOP_AFTER": "cache"}
    settings |= {"BOOT_CACHE_TIMEOUT_S": "4", "HF_HUB_DISABLE_XET": "1", "HF_DEBUG": "1"}
    with echoing(status, cage.plant("answer", shaped())) as port:
        settings["HF_ENDPOINT"] = f"http://me:{password}@127.0.0.1:{port}"
        if proxy:
            settings["HF_ENDPOINT"] = f"http://me:{password}@hub.example"
            other = cage.plant("proxy", shapeless())
            settings["HTTP_PROXY"] = f"http://me:{other}@127.0.0.1:{port}"
        cage.boot(settings)
    assert cage.code == code, cage.err.decode()
    assert not cage.leaks()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts are root's")
def test_a_secret_file(cage: Cage) -> None:
    """Mounted where Docker and Kubernetes do it, over this machine's own, for the boot alone."""
    folder = cage.inputs / "run" / "secrets"
    folder.mkdir(parents=True)
    (folder / "hf_token").write_text(cage.plant("hf_token", shapeless()) + "\n")
    (folder / "db").write_text(cage.plant("another file", shapeless()))
    tell = _TELL.replace("os.environ", "FILES") + (
        "import pathlib\n"
        "FILES = {'HF_TOKEN': pathlib.Path('/run/secrets/hf_token').read_text().strip(),\n"
        "         'DB_PASSWORD': pathlib.Path('/run/secrets/db').read_text()}\n"
        "import app.probes.host as place\nplace.probe_host = fail\n"
    )
    (cage.inputs / "sitecustomize.py").write_text(tell)
    script = f'mount --bind "{cage.inputs}/run" /run && exec "$@"'
    try:
        subprocess.run(["unshare", "-m", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no mount namespace here")
    cage.boot({"BOOT_STOP_AFTER": "host"}, before=["unshare", "-m", "sh", "-c", script, "sh"])
    assert cage.code == 70, cage.err.decode()
    assert "it was ...." in cage.all_text()
    assert not cage.leaks()


@pytest.mark.parametrize("word", ["complete", "in_progress", "precision", "bootguard", "settings"])
def test_a_password_that_is_a_word_of_the_report_does_not_garble_it(cage: Cage, word: str) -> None:
    cage.boot({"DB_PASSWORD": word, "BOOT_STOP_AFTER": "host"})
    assert cage.code == 0, cage.err.decode()
    assert cage.report["state"] == "complete"
    assert "***" not in cage.all_text()


def test_an_earlier_report_does_not_name_a_file(cage: Cage) -> None:
    """What stands in it is not ours to change; that a file is named after it, is."""
    folder = cage.work / "reports"
    folder.mkdir(parents=True)
    earlier = {"report_id": shaped(), "run_id": shaped(), "attempt": 1}
    cage.canaries = {name: str(value) for name, value in earlier.items() if name != "attempt"}
    (folder / "boot-report.json").write_text(json.dumps(earlier, indent=2))
    cage.boot({"BOOT_STOP_AFTER": "host"})
    (moved,) = folder.glob("previous/*")
    assert not cage.leaks(but=[str(moved.relative_to(cage.work))])


def test_an_exception_in_the_supervisors_last_steps(cage: Cage) -> None:
    patch = "import app.outputs\napp.outputs.write_outputs = fail\n"
    (cage.inputs / "sitecustomize.py").write_text(_TELL + _TELL_NOTHING + patch)
    cage.boot({**given(cage), "BOOT_STOP_AFTER": "host"})
    assert "it was ...." in cage.all_text()
    assert not cage.leaks()


def copied(cage: Cage) -> Path:
    """A model of one's own."""
    model = cage.inputs / "model"
    shutil.copytree(tiny_model("llama-nf4"), model)
    return model


@pytest.mark.stack
@pytest.mark.parametrize("broken", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_what_the_models_files_say(cage: Cage, broken: str) -> None:
    """No torch: `stack` for the shared cache, where the model is built."""
    model = copied(cage)
    found = json.loads((model / "config.json").read_text())
    for name in ("model_type", "torch_dtype", "dtype"):
        found[name] = cage.plant(name, shaped())
    found["architectures"] = [cage.plant("architecture", shaped())]
    found["quantization_config"] = {cage.plant("key", shaped()): cage.plant("value", shaped())}
    (model / "config.json").write_text(json.dumps(found))
    canary = cage.plant("broken", shaped())
    with (model / broken).open("a") as file:
        file.write(f'{{"{canary}": {canary}')
    for name in ("generation_config.json", f"{cage.plant('file', shaped())}.safetensors"):
        (model / name).write_text(f"{canary}")
    cage.boot({"BOOT_BASE_MODEL_ID": str(model), "BOOT_STOP_AFTER": "checkpoint", **given(cage)})
    assert cage.code in (65, 66, 78)
    assert not cage.leaks()


@pytest.mark.stack
@pytest.mark.parametrize("log", ["text", "json"])
@pytest.mark.parametrize("end", ["raises", "crashes"])
def test_the_worker_and_its_crash_trace(cage: Cage, log: str, end: str) -> None:
    """A torch of ours fails in the worker; a function's name is in the trace of a crash."""
    frame = cage.plant("function", shaped())
    (cage.inputs / "canary_torch.py").write_text(_TELL)
    (cage.inputs / "torch.py").write_text(
        "import ctypes, canary_torch, pathlib\n"
        "line = pathlib.Path('/proc/self/cmdline').read_bytes()\n"
        f"pathlib.Path({str(cage.inputs)!r}, 'line').write_bytes(line)\n"
        f"told = str('HF_TOKEN' in canary_torch.os.environ)\n"
        f"pathlib.Path({str(cage.inputs)!r}, 'hub').write_text(told)\n"
        f"def {frame}():\n    canary_torch.tell()\n    ctypes.string_at(0)\n"
        + ("canary_torch.fail()\n" if end == "raises" else f"{frame}()\n")
    )
    cage.boot({"BOOT_BASE_MODEL_ID": str(tiny_model("llama-nf4")), **given(cage, log)})
    assert cage.code == 70, cage.err.decode()
    assert (cage.report["crash"] is not None) is (end == "crashes")
    assert not cage.leaks()
    line = (cage.inputs / "line").read_bytes()
    assert not [name for name, canary in cage.canaries.items() if canary.encode() in line]
    assert (cage.inputs / "hub").read_text() == "False"


@pytest.mark.stack
def test_a_job_that_tells_and_fails(cage: Cage) -> None:
    """Its own output on standard output is its own business; what we tell of it is ours."""
    frame = cage.plant("function", shaped())
    (cage.inputs / "canary_job.py").write_text(
        f"{_TELL}\ndef main(*given):\n    {frame}(*given)\n\n"
        f"def {frame}(model, tokenizer, report):\n"
        "    sys.stdout = sys.stderr\n"
        "    assert os.environ['HF_TOKEN'] not in repr(report)\n"
        "    fail()\n"
    )
    secret = given(cage, "json")
    cage.boot(
        {
            "BOOT_BASE_MODEL_ID": str(tiny_model("llama-nf4")),
            "BOOT_JOB": "canary_job:main",
            **secret,
            **TINY,
        }
    )
    assert cage.code == 1, cage.err.decode()
    assert "it was ...." in cage.report["job"]["raised"]
    assert not cage.leaks()


@pytest.mark.stack
def test_the_command_after_a_pass(cage: Cage) -> None:
    """Texts do not tell the folder that is named like a secret; the command must find it."""
    secret = given(cage)
    folder = f"for-{secret['WANDB_API_KEY']}"
    script = f'test -f "$BOOT_REPORT_PATH" && mv {folder} reports'
    arguments = ["--", "sh", "-c", script, "sh", f"--token={cage.plant('argument', shaped())}"]
    cage.boot(
        {
            "BOOT_BASE_MODEL_ID": str(tiny_model("llama-nf4")),
            "BOOT_REPORT_DIR": folder,
            **secret,
            **TINY,
        },
        *arguments,
        secret["HF_TOKEN"],
    )
    assert cage.code == 0, cage.err.decode()
    assert cage.report["handed_over"] is True
    assert not cage.leaks()


def test_the_search_finds_a_leak_of_any_kind(tmp_path: Path) -> None:
    """A search that finds nothing would make all of the above pass."""
    cage = Cage(tmp_path)
    canary = cage.plant("canary", shapeless("'/"))
    cage.work.mkdir()
    for text in (canary, json.dumps([canary]), repr(canary + '"'), canary[:20], canary[-20:]):
        cage.err = f"x {text} y".encode()
        assert cage.leaks(), text
    cage.err = b""
    (cage.work / canary[:20]).touch()
    assert cage.leaks()
    assert ROOT.is_dir()
