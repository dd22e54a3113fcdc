"""Facts of a job's target: found as Python would find it, with nothing imported or executed."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import py_compile
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.checks.host import CHECKS
from app.facts.job_target import Found, JobTargetFacts, search_path
from app.outcome import Fault, Status
from app.probes.host import probe_host
from app.probes.job_target import look
from tests.fakes_preflight import findings, plan_for
from tests.test_host import ROOT, environment, facts_with, in_child_as_uid

MAIN = "def main(model, tokenizer, report): ...\n"
MARK = "import pathlib; pathlib.Path(__file__).with_name('executed').touch()\n"


def write(folder: Path, files: dict[str, str]) -> list[str]:
    """Files below a folder; the path to look along."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [str(folder)]


def found(folder: Path, target: str, files: dict[str, str]) -> JobTargetFacts:
    """What a look finds where only these files are, and nothing else provides modules."""
    return look(target, write(folder, files), finders=())


@pytest.mark.parametrize(
    ("target", "name", "others"),
    [
        ("train:main", "train.py", []),
        ("jobs.train:main", "jobs/train.py", ["jobs/__init__.py"]),
        ("jobs.train:main", "jobs/train.py", []),  # a namespace package
        ("a.b.c.train:main", "a/b/c/train.py", ["a/b/__init__.py"]),
        ("jobs:main", "jobs/__init__.py", []),
        ("os_.path:main", "os_/path.py", []),
        ("jobs.sys:main", "jobs/sys.py", []),
    ],
)
def test_a_function_is_found_in_modules_packages_and_namespaces(
    tmp_path: Path, target: str, name: str, others: list[str]
) -> None:
    facts = found(tmp_path, target, {name: MARK + MAIN} | dict.fromkeys(others, MARK))
    assert (facts.found, facts.file) == (Found.FUNCTION, str(tmp_path / name))
    assert not list(tmp_path.rglob("executed"))
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.mark.parametrize(
    "source",
    [
        MAIN,
        "main = print",
        "import main",
        "from x import y as main",
        "if True:\n    def main(*args): ...",
        "try:\n    from fast import main\nexcept ImportError:\n    def main(): ...",
        "class main:\n    def __init__(self): ...",
        "main: object = print",
        "for main in (print,): ...",
        "x = [main for main in ()]\nmain = print",
        "x = [main for main in ()]\nmatch print:\n    case main: ...",
        "x = [main for main in ()]\nmatch {}:\n    case {**main}: ...",
        "(main := print)",
        "def main(*_): ...",
        "def main(model, tokenizer, report, epochs=3, *rest, **more): ...",
        "def main(model, /, tokenizer, report=None, *, fast=True): ...",
        "@wraps\ndef main(): ...",
        "def main(): ...\nmain = wrapped(main)",
        "def main(): ...\nfrom x import *",
        "@wraps\nasync def main(): ...",
        "# coding: latin-1\ns = 'x'\n" + MAIN,
        "\ufeff" + MAIN,
        "x = '\\d'\n" + MAIN,  # warns while it is compiled
    ],
)
def test_whatever_binds_the_name_at_the_top_is_taken(tmp_path: Path, source: str) -> None:
    assert found(tmp_path, "train:main", {"train.py": source}).found is Found.FUNCTION


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def mian(a, b, c): ...",
        "def outer():\n    def main(): ...",
        "class A:\n    def main(self): ...",
        "main()",
        "def f():\n    main = 1",
        "'main'",
        "import main.x as y",
        # Their variables are their own, also where Python (3.12) runs them in the frame around.
        "x = [main for main in ()]",
        "x = {main: 1 for y, main in ()}, {(lambda: main) for main in ()}",
    ],
)
def test_a_name_that_is_not_bound_at_the_top_is_missing(tmp_path: Path, source: str) -> None:
    assert found(tmp_path, "train:main", {"train.py": source}).found is Found.NO_FUNCTION


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("from x import *", "everything of x"),
        ("if 1:\n    from ..x import *", "everything of ..x"),
        ("def __getattr__(name): ...", "__getattr__"),
        ("globals()['main'] = print", "globals"),
        ("exec('main = 1')", "exec"),
        ("def setup():\n    global main\n    main = print", "binds the name"),
        ("x = [main for main in ()], [main := y for y in (print,)]", "binds the name"),
    ],
)
def test_what_may_bind_it_unseen_is_not_judged(tmp_path: Path, source: str, why: str) -> None:
    facts = found(tmp_path, "train:main", {"train.py": source})
    assert facts.found is Found.MODULE
    assert why in facts.why


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def main(): ...", "takes 0"),
        ("def main(model, tokenizer): ...", "takes 2"),
        ("def main(a, b, c, d): ...", "needs more"),
        ("def main(a, b, c, *, d): ...", "by name"),
        ("def main(a, b, *, report): ...", "takes 2"),
        ("async def main(model, tokenizer, report): ...", "async"),
    ],
)
def test_a_function_that_cannot_be_called_as_it_will_be_is_told(
    tmp_path: Path, source: str, why: str
) -> None:
    facts = found(tmp_path, "train:main", {"train.py": "\n" + source})
    assert (facts.found, facts.line) == (Found.NOT_CALLED_SO, 2)
    assert why in facts.why


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def main(:\n", 1),
        ("x = 1\nreturn x\n", 2),  # found in the last step of a compilation only
        ("x = 1\n\n  y = 2\n", 3),
        ("print 'two'\n", 1),
        ("# coding: no-such\n", None),
        ("x = '\0'\n", None),
    ],
)
def test_a_broken_file_is_told_with_its_line(tmp_path: Path, source: str, line: int | None) -> None:
    facts = found(tmp_path, "train:main", {"train.py": source})
    assert facts.found is Found.BROKEN
    assert facts.why
    if line is not None:
        assert facts.line == line


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("trian:main", "no module trian"),
        ("jobs.trian:main", "no module trian in jobs"),
        ("train.deep:main", "train"),
        ("space.other:main", "no module other in space"),
        ("jobs.train.py:main", "is a module and no package"),
    ],
)
def test_a_module_that_is_not_there_is_told_by_the_piece_that_is_missing(
    tmp_path: Path, target: str, why: str
) -> None:
    files = {"train.py": "", "jobs/__init__.py": "", "jobs/train.py": "", "space/x.py": ""}
    facts = found(tmp_path, target, files)
    assert facts.found is Found.NO_MODULE
    assert why in facts.why


def test_a_namespace_package_has_no_functions(tmp_path: Path) -> None:
    facts = found(tmp_path, "jobs:main", {"jobs/train.py": MAIN})
    assert facts.found is Found.NO_FUNCTION
    assert "without a file" in facts.why


@pytest.mark.parametrize("text", ["__path__.append('x')", "import sys; sys.modules['jobs.x'] = 1"])
def test_a_package_that_makes_modules_is_not_judged_by_its_folder(
    tmp_path: Path, text: str
) -> None:
    assert found(tmp_path, "jobs.x:main", {"jobs/__init__.py": text}).found is Found.UNKNOWN


def test_a_finder_that_is_not_pythons_own_may_know_more(tmp_path: Path) -> None:
    class Editable:
        pass

    Editable.__module__ = "__editable___jobs_finder"
    path = write(tmp_path, {"here.py": MAIN})
    assert look("jobs:main", path, [PathFinder, Editable()]).found is Found.UNKNOWN
    assert look("jobs:main", path, [PathFinder]).found is Found.NO_MODULE
    assert look("here:main", path, [Editable()]).found is Found.FUNCTION


def test_no_finder_of_this_environment_leaves_every_question_open() -> None:
    code = (
        "import sys; from app.probes import host; from app.probes.job_target import look; "
        "print(look('no_such_job:main', sys.path).found.value)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "no module"


def test_modules_without_source_are_not_judged(tmp_path: Path) -> None:
    path = write(tmp_path, {"source.py": MAIN})
    py_compile.compile(str(tmp_path / "source.py"), cfile=str(tmp_path / "compiled.pyc"))
    assert look("compiled:main", path, ()).found is Found.MODULE
    with zipfile.ZipFile(tmp_path / "jobs.zip", "w") as archive:
        archive.writestr("jobs/__init__.py", "")
        archive.writestr("jobs/train.py", MAIN)
    assert look("jobs.train:main", [str(tmp_path / "jobs.zip")], ()).found is Found.MODULE
    assert look("jobs.other:main", [str(tmp_path / "jobs.zip")], ()).found is not Found.MODULE
    assert look("sys:exit", path, ()).found is Found.UNKNOWN


def test_a_file_that_is_written_after_a_look_is_found_by_the_next(tmp_path: Path) -> None:
    assert found(tmp_path, "train:main", {"other.py": ""}).found is Found.NO_MODULE
    assert found(tmp_path, "train:main", {"train.py": MAIN}).found is Found.FUNCTION


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Path]:
    """A folder first on the path of this Python, and modules of it forgotten afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("target", ["one:main", "two.three:main", "space_.four:main", "both:main"])
def test_the_file_is_the_one_that_python_imports(names: Path, target: str) -> None:
    files = ("one.py", "two/__init__.py", "two/three.py", "space_/four.py", "both.py")
    write(names, dict.fromkeys((*files, "both/__init__.py"), MAIN))
    importlib.invalidate_caches()
    facts = look(target, sys.path)
    spec = importlib.util.find_spec(target.partition(":")[0])
    assert spec is not None
    assert facts.file == spec.origin
    assert facts.found is Found.FUNCTION


@pytest.mark.parametrize("name", ["pydantic", "json.decoder", "email.mime.text", "pytest"])
def test_installed_modules_are_found_where_python_has_them(name: str) -> None:
    module = importlib.import_module(name)
    assert look(f"{name}:main", sys.path).file == module.__file__


def test_unreadable_files_and_odd_paths_are_facts(tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "gone.py").symlink_to("/no/such/file")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    for name in ("loop", "gone", "pipe", "folder"):
        assert look(f"{name}:main", [str(tmp_path)], ()).found is Found.NO_MODULE
    for entry in ("", "a\0b", "\udcff", "\ud800", "/proc/self/mem", "/dev/null"):
        facts = look("no_such_job:main", [entry], ())
        assert facts.found in (Found.NO_MODULE, Found.UNKNOWN)


def test_a_source_that_nobody_wrote_by_hand_is_left_to_the_import(tmp_path: Path) -> None:
    large = "x = 1\n" * 800_000
    assert found(tmp_path, "large:main", {"large.py": large}).found is Found.MODULE
    deep = "x = " + "-" * 100_000 + "1"
    assert found(tmp_path, "deep:main", {"deep.py": deep}).found in (Found.MODULE, Found.BROKEN)


@settings(deadline=None)
@given(
    target=st.text(max_size=30)
    | st.from_regex(r"(train|jobs|[a-z]{1,3})(\.[a-z_]{1,5}){0,2}:[a-z_]{1,5}", fullmatch=True)
)
def test_any_target_is_taken_or_told_in_words(target: str) -> None:
    facts = look(target, sys.path)
    plan = plan_for()
    finding = findings(CHECKS, facts_with(job=facts), plan)["host.job"]
    assert finding.status in (Status.PASS, Status.FAIL)


@settings(deadline=None)
@given(
    source=st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass"))
    | st.sampled_from([b"utf-16", b"hex", b"rot13", b"idna", b"punycode", b"\xff"]).map(
        lambda codec: b"# coding: " + codec + b"\nx = 1\n"
    )
)
def test_any_content_of_the_file_is_taken_or_told(
    tmp_path_factory: pytest.TempPathFactory, source: bytes
) -> None:
    """And never executed: whatever Python makes of these bytes, they raise when they run."""
    folder = tmp_path_factory.mktemp("any")
    (folder / "train.py").write_bytes(b"raise SystemExit(99)\n" + source)
    facts = look("train:main", [str(folder)], ())
    assert facts.found in (Found.BROKEN, Found.NO_FUNCTION, Found.MODULE, Found.FUNCTION)
    finding = findings(CHECKS, facts_with(job=facts), plan_for())["host.job"]
    assert finding.reason.isprintable()
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_the_working_folder_comes_last_and_nothing_twice() -> None:
    known = ["/app", "", "/extra", "/usr/lib/python3.11", "relative"]
    path = search_path({"PYTHONPATH": "/extra:/late::near"}, "/here", known)
    assert path == [
        *("/app", "/extra", "/usr/lib/python3.11", "/here/relative"),
        *("/late", "/here/near", "/here"),
    ]
    assert search_path({}, "/app", ["/app", "/lib"]) == ["/app", "/lib"]
    assert search_path({}, None, ["/lib", Path("/odd")]) == ["/lib"]
    assert search_path({}, None)[0] in sys.path


def test_a_python_with_this_path_imports_what_was_found(tmp_path: Path) -> None:
    """The working folder last: its `json.py` shadows nothing, its `train.py` is found."""
    write(tmp_path, {"json.py": "raise SystemExit(3)", "train.py": MAIN})
    path = search_path({}, str(tmp_path))
    assert look("train:main", path).file == str(tmp_path / "train.py")
    assert look("json:main", path).file != str(tmp_path / "json.py")
    code = f"import sys; sys.path[:] = {path!r}; import json, train; print(train.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path / "train.py")


def test_the_host_stage_looks_for_the_job_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"training_job_here.py": MARK + MAIN})
    monkeypatch.chdir(tmp_path)
    plan = replace(plan_for(report_dir=tmp_path / "reports"), job="training_job_here:main")
    facts = probe_host(plan, environment(tmp_path))
    assert facts.job is not None
    assert facts.job.found is Found.FUNCTION
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("target", "source", "words"),
    [
        ("train:mian", MAIN, ["set BOOT_JOB=train:main"]),
        ("train:fit", MAIN, ["define fit in train"]),
        ("trian:main", MAIN, ["PYTHONPATH", "working folder"]),
        ("app.train:main", MAIN, ["another name"]),
        ("train:main", "def main(:", ["correct", "line 1"]),
        ("train:main", "def main(): ...", ["def main(model, tokenizer, report)", "line 1"]),
    ],
)
def test_a_wrong_target_is_the_settings_fault_and_has_a_way_out(
    tmp_path: Path, target: str, source: str, words: list[str]
) -> None:
    facts = found(tmp_path, target, {"train.py": source})
    finding = findings(CHECKS, facts_with(job=facts), plan_for())["host.job"]
    assert finding.status is Status.FAIL
    assert finding.fault is None  # the check's own
    assert {check.id: check.fault for check in CHECKS}["host.job"] is Fault.CONFIG
    for word in words:
        assert word in finding.next_step


@pytest.mark.skipif(not ROOT, reason="only root can become another uid")
def test_a_file_that_this_uid_may_not_read_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        write(Path(folder), {"train.py": MAIN})
        (Path(folder) / "train.py").chmod(0o600)
        out = in_child_as_uid(
            "from app.probes.job_target import look; "
            f"facts = look('train:main', [{folder!r}], ()); "
            "print(facts.found.value, facts.errno, facts.file)"
        )
    assert out == f"unreadable {errno.EACCES} {folder}/train.py"


@pytest.mark.parametrize(
    ("number", "fault"),
    [(errno.EACCES, Fault.CONFIG), (errno.EIO, Fault.READ_ERROR), (None, None)],
)
def test_whose_fault_an_unreadable_file_is(number: int | None, fault: Fault | None) -> None:
    facts = JobTargetFacts("train:main", Found.UNREADABLE, "/w/train.py", "no", errno=number)
    finding = findings(CHECKS, facts_with(job=facts), plan_for())["host.job"]
    assert finding.fault is fault
    assert "/w/train.py" in finding.next_step


def test_without_a_job_there_is_nothing_to_look_for() -> None:
    finding = findings(CHECKS, facts_with(), plan_for())["host.job"]
    assert finding.status is Status.SKIP
