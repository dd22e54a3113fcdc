"""A job and a command after a real boot: what user code finds, and what becomes of its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import tiny_model

pytestmark = [pytest.mark.stack, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent

# Lies in the working folder, beside a module that would shadow the standard library's.
JOB = """
    import atexit, gc, os, signal, sys, threading, time
    from pathlib import Path

    def main(model, tokenizer, report):
        from peft import PeftModel
        facts = {
            "model": isinstance(model, PeftModel),
            "trainable": any(p.requires_grad for p in model.parameters()),
            "tokenizer": tokenizer("a text").input_ids != [],
            "verdict": report.stages[-3].name + " " + report.stages[-3].status.value,
            "frozen": is_frozen(report),
            "collected": gc.isenabled(),
            "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
            "no input": sys.stdin.read() == "",
        }
        wrong = [name for name, true in facts.items() if not true]
        print("facts", wrong, facts["verdict"], flush=True)
        print("to the log", file=sys.stderr)
        os.write(1, b"raw \\xff bytes\\n")
        threading.Thread(target=finish, args=("thread",)).start()
        atexit.register(finish, "exit")
        return 7

    def is_frozen(report):
        try:
            report.verdict = "pass"
        except Exception:
            return True
        return False

    def finish(name):
        time.sleep(0.5)
        Path(name).touch()
"""


def boot(folder: Path, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "app.boot", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BOOT_HARDWARE": "cpu",
            "BOOT_BASE_MODEL_ID": str(tiny_model("llama-nf4")),
            "BOOT_MAX_SEQ_LENGTH": "512",
            **settings,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def report_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "reports" / "boot-report.json").read_text())
    return found


def test_a_job_in_the_working_folder_gets_the_guarded_model_and_its_status_is_the_boots(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(JOB))
    (tmp_path / "json.py").write_text("raise SystemExit('shadow')")
    process = boot(tmp_path, BOOT_JOB="train:main")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 7, err.decode()
    *job, verdict = out.splitlines()
    assert job == [b"facts [] numerics pass", b"raw \xff bytes"]
    assert json.loads(verdict)["exit"] == 7
    assert b"to the log" in err
    report = report_of(tmp_path)
    assert (report["job"]["returned"], report["job"]["code"]) == ("7", 7)
    assert (report["state"], report["exit"]["process_code"]) == ("complete", 7)
    # As after any Python program: threads are waited for, exit functions run.
    assert [name for name in ("thread", "exit") if not (tmp_path / name).exists()] == []


def test_an_exception_of_the_job_is_status_1_with_its_cause_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "def main(model, tokenizer, report):\n"
        "    try:\n"
        "        open('/data/gone')\n"
        "    except OSError as error:\n"
        "        raise RuntimeError('no data') from error\n"
    )
    process = boot(tmp_path, BOOT_JOB="train:main")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1, err.decode()
    report = report_of(tmp_path)
    assert report["exit"]["process_code"] == report["job"]["code"] == 1
    assert report["job"]["raised"].startswith(
        "RuntimeError: no data (innermost cause: FileNotFound"
    )
    assert b"Traceback" in err
    assert report["verdict"] == "pass", "the guard's verdict is no matter of the job"


def test_a_command_after_a_pass_takes_the_boots_place(tmp_path: Path) -> None:
    look = (
        'echo "$$ $BOOT_VERDICT $BOOT_COMPUTE_DTYPE $BOOT_MODEL_PATH $BOOT_REPORT_PATH";'
        ' echo "children: $(cat /proc/$$/task/$$/children)"; exit 9'
    )
    process = boot(tmp_path, "--", "sh", "-c", look)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 9, err.decode()
    verdict, told, children = out.decode().splitlines()
    folder, report = tiny_model("llama-nf4"), tmp_path / "reports" / "boot-report.json"
    assert told == f"{process.pid} pass float32 {folder} {report}"
    # The one that `cat` is: none of the boot's is left.
    assert len(children.split()) <= 2, children
    assert json.loads(verdict)["exit"] == 0
    found = report_of(tmp_path)
    assert (found["handed_over"], found["state"], found["verdict"]) == (True, "complete", "pass")
