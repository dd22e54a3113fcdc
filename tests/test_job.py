"""Facts about the job's edge: how user code is found, called, and turned into an exit status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.job import JobEnd, run

ROOT = Path(__file__).resolve().parent.parent
MODEL, TOKENIZER, REPORT = object(), object(), object()


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The job may change the import path and the signals of its process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    kept = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)
    for name in ("the_job", "the_pack", "the_pack.inner"):
        sys.modules.pop(name, None)


def job(folder: Path, body: str, target: str = "the_job:main") -> JobEnd:
    """Run a module of this text."""
    (folder / "the_job.py").write_text(textwrap.dedent(body))
    return run(target, MODEL, TOKENIZER, REPORT, [str(folder)])


def returning(folder: Path, expression: str) -> JobEnd:
    return job(folder, f"def main(model, tokenizer, report):\n    return {expression}\n")


def program(folder: Path, code: str, *descriptors: int) -> subprocess.CompletedProcess[str]:
    """A process of its own, as the worker is: with buffers, or nothing shows who flushes them."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    environ.pop("PYTHONUNBUFFERED", None)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        pass_fds=descriptors,
    )


@pytest.mark.parametrize(
    ("expression", "code", "returned"),
    [
        ("None", 0, "None"),
        ("0", 0, "0"),
        ("3", 3, "3"),
        ("255", 255, "255"),
        ("True", 0, "True"),
        ("False", 1, "False"),
        ("{'loss': 1.0}", 0, "an object of type dict"),
        ("0.5", 0, "an object of type float"),
        ("__import__('pathlib').Path()", 0, "an object of type pathlib.PosixPath"),
        ("256", 1, "256, which is no exit status (0 to 255)"),
        ("-1", 1, "-1, which is no exit status (0 to 255)"),
    ],
)
def test_a_return_value_becomes_a_status(
    tmp_path: Path, expression: str, code: int, returned: str
) -> None:
    assert returning(tmp_path, expression) == JobEnd(returned, None, code)


@pytest.mark.parametrize("expression", ["10 ** 10000", "-(10 ** 10000)"])
def test_a_number_too_long_to_write_is_no_status_either(tmp_path: Path, expression: str) -> None:
    end = returning(tmp_path, expression)
    assert end.code == 1
    assert "0x" in str(end.returned)
    assert len(str(end.returned)) < 300


def test_the_job_gets_model_tokenizer_and_report(tmp_path: Path) -> None:
    body = """
        seen = []
        def main(*given):
            seen.extend(given)
    """
    assert job(tmp_path, body).code == 0
    assert sys.modules["the_job"].seen == [MODEL, TOKENIZER, REPORT]


def test_the_function_may_be_an_attribute_of_a_class_in_a_package(tmp_path: Path) -> None:
    pack = tmp_path / "the_pack"
    pack.mkdir()
    (pack / "__init__.py").write_text("")
    (pack / "inner.py").write_text(
        "class Job:\n    @staticmethod\n    def main(model, tokenizer, report):\n        return 7\n"
    )
    end = run("the_pack.inner:Job.main", MODEL, TOKENIZER, REPORT, [str(tmp_path)])
    assert end == JobEnd("7", None, 7)


@pytest.mark.parametrize(
    "code", ["", "0", "3", "256", "-1", "True", "10 ** 30", "'the data are gone'", "('a', 2)", "[]"]
)
def test_system_exit_means_what_it_means_to_the_interpreter(
    tmp_path: Path, code: str, capfd: pytest.CaptureFixture[str]
) -> None:
    real = program(tmp_path, f"import sys; sys.exit({code})")
    end = job(tmp_path, f"import sys\ndef main(m, t, r):\n    sys.exit({code})\n")
    assert end.code == real.returncode
    # Python 3.12 adds a line of its own about a number that no status can hold.
    said = re.sub(r"OverflowError: .*\n", "", real.stderr)
    assert capfd.readouterr().err == said
    assert end.returned is None
    assert str(end.raised).startswith("SystemExit")


def test_an_exception_is_told_with_its_innermost_cause_and_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
        def main(model, tokenizer, report):
            try:
                open('/does/not/exist')
            except OSError as error:
                raise RuntimeError('no\\ndata') from error
    """
    end = job(tmp_path, body)
    assert (end.returned, end.code) == (None, 1)
    assert end.raised == (
        "RuntimeError: no data (innermost cause: FileNotFoundError: [Errno 2] "
        "No such file or directory: '/does/not/exist')"
    )
    printed = capfd.readouterr().err
    assert "the_job.py" in printed
    assert 'engine/job.py", line' not in printed.splitlines()[-3]


def test_deep_recursion_is_told_as_any_exception(tmp_path: Path) -> None:
    body = """
        def ping(n):
            pong(n)
        def pong(n):
            ping(n)
        def main(model, tokenizer, report):
            ping(0)
    """
    end = job(tmp_path, body)
    assert "RecursionError" in str(end.raised)


@pytest.mark.parametrize(
    ("statement", "code", "name"),
    [
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("raise GeneratorExit", 1, "GeneratorExit"),
        (
            "class Own(BaseException): pass\n    raise Own('mine')",
            1,
            "the_job.main.<locals>.Own: mine",
        ),
        (
            "class Odd(Exception):\n        def __str__(self): raise OSError\n    raise Odd",
            1,
            "Odd",
        ),
        ("import the_package_that_is_not_there", 1, "the_package_that_is_not_there"),
        ("exec('1 +')", 1, "SyntaxError"),
    ],
)
def test_whatever_is_raised_ends_here(tmp_path: Path, statement: str, code: int, name: str) -> None:
    end = job(tmp_path, f"def main(model, tokenizer, report):\n    {statement}\n")
    assert end.code == code
    assert name in str(end.raised)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("main = 3", "TypeError: main must be a function of (model, tokenizer, report)"),
        (
            "def main(): pass",
            "TypeError: main() must take (model, tokenizer, report), and takes ()",
        ),
        ("def main(model, tokenizer): pass", "and takes (model, tokenizer)"),
        ("def main(a, b, c, d): pass", "and takes (a, b, c, d)"),
        ("def main(*, model, tokenizer, report): pass", "TypeError: main() must take"),
        ("async def main(a, b, c): pass", "plain function: call asyncio.run inside it"),
        ("async def main(a, b, c): yield", "plain function: call asyncio.run inside it"),
        ("def main(a, b, c): yield", "holds a yield"),
        ("async def inner(): pass\ndef main(a, b, c): return inner()", "its body has not run"),
        ("def main(a, b, c): return (x for x in [])", "its body has not run"),
        ("def other(a, b, c): pass", "AttributeError: no main in the_job (/"),
        ("raise OSError('at import')", "OSError: at import"),
        ("raise SystemExit(9)", "SystemExit: 9"),
        (
            "import nothing_of_the_kind",
            "ModuleNotFoundError: No module named 'nothing_of_the_kind'",
        ),
    ],
)
def test_what_cannot_be_called_as_a_job_says_why(tmp_path: Path, body: str, told: str) -> None:
    end = job(tmp_path, body)
    assert told in str(end.raised)
    assert end.code == (9 if "SystemExit" in body else 1)


def test_a_module_that_is_not_there_is_named_with_the_places_searched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    end = run("the_pack.missing:main", MODEL, TOKENIZER, REPORT, [str(tmp_path)])
    assert "no module the_pack for BOOT_JOB=the_pack.missing:main" in str(end.raised)
    assert str(tmp_path) in capfd.readouterr().err


def test_optional_parameters_and_callable_objects_are_fine(tmp_path: Path) -> None:
    body = """
        class Job:
            def __call__(self, model, tokenizer, report, more=5):
                return more
        main = Job()
    """
    assert job(tmp_path, body).code == 5


def test_the_folder_of_the_job_comes_last_on_the_path(tmp_path: Path) -> None:
    """A `json.py` beside the job must not be what the libraries import."""
    (tmp_path / "json.py").write_text("raise SystemExit('shadow')")
    body = """
        import sys
        def main(model, tokenizer, report):
            import json.decoder
            return sys.path.index(%r) == len(sys.path) - 1
    """
    assert job(tmp_path, body % str(tmp_path)).code == 0


def test_what_a_job_puts_in_place_of_the_streams_does_not_break_its_end(tmp_path: Path) -> None:
    """What the job leaves in `sys.stdout` need not even have a method."""
    body = """
        import sys
        def main(model, tokenizer, report):
            sys.stdout = None
            sys.stderr = object()
            raise ValueError('x')
    """
    (tmp_path / "the_job.py").write_text(textwrap.dedent(body))
    done = program(
        tmp_path,
        """
        import os
        from app.engine.job import run
        end = run("the_job:main", None, None, None, ["."])
        os.write(1, f"{end.code} {end.raised}".encode())
        os._exit(0)
        """,
    )
    assert done.stdout == "1 ValueError: x", done.stderr


INT_IS_IGNORED = """
    import os, signal
    from app.engine.job import run
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = run("the_job:main", None, None, None, ["."])
    os.write(1, f"{end.code} {end.raised}".encode())
    os._exit(0)
"""


def test_int_reaches_the_job_though_the_guard_ignores_it(tmp_path: Path) -> None:
    (tmp_path / "the_job.py").write_text(
        "import os, signal, time\n"
        "def main(model, tokenizer, report):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(30)\n"
    )
    done = program(tmp_path, INT_IS_IGNORED)
    assert done.stdout == "130 KeyboardInterrupt", done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_signals_do_what_they_do_to_any_program(tmp_path: Path, name: str) -> None:
    (tmp_path / "the_job.py").write_text(
        "import os, signal, time\n"
        "def main(model, tokenizer, report):\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    time.sleep(30)\n"
    )
    code = INT_IS_IGNORED.replace("SIGINT, signal.SIG_IGN", f"{name}, lambda *_: None")
    assert program(tmp_path, code).returncode == -signal.Signals[name]


def test_a_child_that_the_job_forks_and_lets_return_is_no_second_worker(tmp_path: Path) -> None:
    (tmp_path / "the_job.py").write_text(
        "import os\n"
        "def main(model, tokenizer, report):\n"
        "    child = os.fork()\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + 1 if child else 4\n"
    )
    assert program(tmp_path, INT_IS_IGNORED).stdout == "5 None"


def test_the_jobs_output_is_the_adopted_one_for_python_c_and_children(tmp_path: Path) -> None:
    (tmp_path / "the_job.py").write_text(
        "import os, subprocess\n"
        "def main(model, tokenizer, report):\n"
        "    print('of python', flush=True)\n"
        "    os.write(1, b'raw \\xff\\n')\n"
        "    subprocess.run(['echo', 'of a child'], check=True)\n"
        "    print('not flushed by the job')\n"
    )
    with (tmp_path / "real").open("wb") as real:
        done = program(
            tmp_path,
            f"""
            import os
            from app.engine.job import adopt_stdout, run
            print("of the guard")
            adopt_stdout({real.fileno()})
            end = run("the_job:main", None, None, None, ["."])
            try:
                os.fstat({real.fileno()})
            except OSError:
                os._exit(end.code)
            """,
            real.fileno(),
        )
    assert (done.returncode, done.stdout) == (0, "of the guard\n"), done.stderr
    found = (tmp_path / "real").read_bytes()
    assert found == b"of python\nraw \xff\nof a child\nnot flushed by the job\n"


def test_on_a_terminal_the_jobs_lines_come_at_once(tmp_path: Path) -> None:
    reader, terminal = os.openpty()
    try:
        done = program(
            tmp_path,
            f"""
            import os
            from app.engine.job import adopt_stdout
            adopt_stdout({terminal})
            print("a line")
            os._exit(0)  # without a flush
            """,
            terminal,
        )
        assert done.returncode == 0, done.stderr
        assert os.read(reader, 100).split() == [b"a", b"line"]
    finally:
        os.close(reader)
        os.close(terminal)


def test_an_output_put_there_by_a_library_is_replaced(tmp_path: Path) -> None:
    with (tmp_path / "real").open("wb") as real:
        done = program(
            tmp_path,
            f"""
            import io, sys
            from app.engine.job import adopt_stdout
            sys.stdout = io.TextIOWrapper(io.BytesIO())
            adopt_stdout({real.fileno()})
            print("a line")
            """,
            real.fileno(),
        )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (tmp_path / "real").read_text() == "a line\n"


def test_threads_executors_and_exit_functions_end_as_they_do_in_a_program(tmp_path: Path) -> None:
    """An executor that nobody has shut down waits for work until the interpreter ends it."""
    done = program(
        tmp_path,
        """
        import atexit, os, threading, time
        from concurrent.futures import ThreadPoolExecutor
        from app.engine.job import wind_up
        atexit.register(print, "exit function")
        pool = ThreadPoolExecutor(1)
        pool.submit(lambda: (time.sleep(0.3), print("executor")))
        threading.Thread(target=lambda: (time.sleep(0.6), print("thread"))).start()
        wind_up()
        os._exit(3)
        """,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == ["executor", "thread", "exit function"]


def test_an_interrupt_ends_the_waiting_for_threads_and_not_the_exit_functions(
    tmp_path: Path,
) -> None:
    done = program(
        tmp_path,
        """
        import atexit, os, signal, threading, time
        from app.engine.job import wind_up
        atexit.register(print, "exit function")
        threading.Thread(target=time.sleep, args=(60,)).start()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        wind_up()
        os._exit(3)
        """,
    )
    assert (done.returncode, done.stdout) == (3, "exit function\n"), done.stderr


@pytest.mark.parametrize("deed", ["close", "detach"])
def test_a_job_may_close_its_streams(tmp_path: Path, deed: str) -> None:
    (tmp_path / "the_job.py").write_text(
        f"import sys\ndef main(model, tokenizer, report):\n    sys.stdout.{deed}()\n    return 6\n"
    )
    code = """
        import os
        from app.engine.job import run
        os._exit(run("the_job:main", None, None, None, ["."]).code)
    """
    assert program(tmp_path, code).returncode == 6


def test_output_that_cannot_be_written_is_told_and_tried_once(tmp_path: Path) -> None:
    (tmp_path / "the_job.py").write_text(
        "def main(model, tokenizer, report):\n    print('buffered')\n"
    )
    code = """
        import os, sys
        from app.engine.job import adopt_stdout, run
        adopt_stdout(os.open("/dev/full", os.O_WRONLY))
        end = run("the_job:main", None, None, None, ["."])
        sys.stdout.flush()
        os._exit(end.code)
    """
    done = program(tmp_path, code)
    assert done.returncode == 0
    assert done.stderr == "lost what was printed last: [Errno 28] No space left on device\n"
