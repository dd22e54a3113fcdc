"""Facts of the command line: what is asked for, what cannot be started, and that no value shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.command_line import CommandLine, parse
from app.outcome import Fault, Finding, Status

PATH = {"PATH": "/usr/bin:/bin"}
SECRET = "Zq7-value-of-an-argument"


def problem_of(*arguments: str, path: str = PATH["PATH"]) -> Finding:
    (finding,) = parse(arguments, {"PATH": path}).problems
    assert finding.status is Status.FAIL
    assert finding.fault is Fault.USAGE
    assert finding.expected
    assert finding.actual
    assert finding.next_step
    return finding


def script(folder: Path, text: str, mode: int = 0o755) -> str:
    path = folder / "program"
    path.write_text(text, newline="")
    path.chmod(mode)
    return str(path)


def test_nothing_is_asked_for_by_nothing() -> None:
    assert parse((), PATH) == CommandLine()


def test_a_command_is_taken_as_it_stands_after_the_first_separator() -> None:
    found = parse(("--", "env", "--help", "--", "-x", ""), PATH)
    assert found.command == ("env", "--help", "--", "-x", "")
    assert not found.problems


def test_help_beside_a_command_runs_neither() -> None:
    assert "--help" in problem_of("--help", "--", "env").reason
    assert problem_of("--foo", "-h").reason == "unknown argument '--foo'"


def test_every_unknown_argument_is_named_without_its_value() -> None:
    found = parse(("train.py", f"--token={SECRET}", "", "--", "no-such-program"), PATH)
    reasons = [finding.reason for finding in found.problems]
    assert reasons[0] == "unknown argument 'train.py'"
    assert reasons[1] == "unknown argument '--token'"
    assert len(reasons) == 4
    assert SECRET not in str(found.problems)


def test_a_separator_without_a_command_is_a_usage_problem() -> None:
    assert "no command" in problem_of("--").reason


def test_a_program_that_is_nowhere_is_named(tmp_path: Path) -> None:
    finding = problem_of("--", "pyhton", "-c", SECRET)
    assert finding.reason == "the command 'pyhton' cannot be started: not found on PATH"
    assert SECRET not in str(finding)
    assert "no such file" in problem_of("--", str(tmp_path / "train")).reason
    assert "not found" in problem_of("--", "sh", path="/nowhere").reason
    assert "cannot be started" in problem_of("--", "").reason
    assert "cannot be started" in problem_of("--", "a\0b").reason


def test_a_folder_and_a_file_without_rights_are_no_programs(tmp_path: Path) -> None:
    assert "no such file" in problem_of("--", f"{tmp_path}/").reason
    plain = script(tmp_path, "print()\n", 0o644)
    assert "not executable" in problem_of("--", plain).reason
    assert "not executable" in problem_of("--", "program", path=str(tmp_path)).reason


def test_a_variable_before_a_command_is_a_shells_habit_and_its_value_does_not_show() -> None:
    finding = problem_of("--", f"API_KEY={SECRET}", "python")
    assert "env NAME=value" in finding.next_step
    assert SECRET not in str(finding)


@pytest.mark.parametrize(
    "first", ["#!/no/such/python", "#!/bin/sh\r", "#!/bin/sh\r\n", "#! \t/no/such -x", "#!", "#!/"]
)
def test_a_script_whose_interpreter_is_missing_is_told_before_it_is_needed(
    tmp_path: Path, first: str
) -> None:
    path = script(tmp_path, first + "\nexit 0\n")
    with pytest.raises(OSError, match=r"."):
        subprocess.run([path], check=False)
    assert "a script for" in problem_of("--", path).reason


@pytest.mark.parametrize("first", ["#!/bin/sh", "#! /bin/sh", "#!\t/bin/sh -e", "#!/bin/sh -e x"])
def test_a_script_that_starts_is_taken(tmp_path: Path, first: str) -> None:
    path = script(tmp_path, first + "\nexit 0\n")
    subprocess.run([path], check=False)
    assert parse(("--", path), {}) == CommandLine(command=(path,))


def test_this_python_is_a_program() -> None:
    assert not parse(("--", sys.executable, "-V"), {}).problems


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o755)
    assert "no regular file" in problem_of("--", str(path)).reason


@given(
    st.lists(st.text() | st.sampled_from(["--", "--help", "-h", "sh", f"--a={SECRET}"]), max_size=6)
)
def test_any_command_line_is_taken_or_refused_in_words(arguments: list[str]) -> None:
    found = parse(arguments, PATH)
    for finding in found.problems:
        assert finding.reason.isprintable()
        assert SECRET not in str(finding)
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--" in arguments:
        assert found.command == tuple(arguments[arguments.index("--") + 1 :])
    assert len(found.problems) >= len([one for one in ours if one not in {"--help", "-h"}])
