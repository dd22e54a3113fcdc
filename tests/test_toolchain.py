"""What Triton compiles with: real compilers, real faults, and files of a driver made by gcc."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from app.checks._toolchain import CHECKS
from app.facts.host import Folder, FolderFacts, HostFacts
from app.facts.toolchain import Attempt, Attempts, Ended, ToolchainFacts
from app.outcome import Fault, Finding, Status
from app.probes.libcuda import linked_name
from app.probes.ptxas import find_ptxas
from app.probes.toolchain import compiling, deadline_of
from tests.fakes_preflight import findings, plan_for

ROOT = os.getuid() == 0
REPOSITORY = Path(__file__).resolve().parents[1]
GCC = shutil.which("gcc") or ""
pytestmark = pytest.mark.skipif(not GCC, reason="the tests' own parts are made with gcc")


def probe(
    tmp_path: Path, changes: Mapping[str, str], *, hardware: str = "h100", deadline_s: float = 20.0
) -> ToolchainFacts:
    """The probe with these variables and a temporary folder of its own."""
    (tmp_path / "tmp").mkdir(exist_ok=True)
    environ = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path / "tmp"), **changes}
    with compiling(plan_for(hardware), environ, deadline_s) as toolchain:
        return toolchain.facts()


def judged(facts: ToolchainFacts) -> dict[str, Finding]:
    """What the checks say of it."""
    # The judges of the toolchain read nothing else of the node.
    host = cast("HostFacts", SimpleNamespace(toolchain=facts, caches=()))
    return findings(CHECKS, host, plan_for("h100"))


def script(folder: Path, name: str, text: str) -> Path:
    """A program of the shell's."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def library(folder: Path, name: str = "libcuda.so.1") -> Path:
    """A real shared library."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    source = "int cuInit(unsigned flags) { return (int)flags; }"
    command = [GCC, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source.encode(), check=True)
    return path


def test_this_machine_compiles_and_nothing_is_left_behind(tmp_path: Path) -> None:
    facts = probe(tmp_path, {})
    said = judged(facts)
    assert facts.compiler == GCC
    assert said["host.c_compiler"].status is Status.PASS
    assert said["host.python_h"].status is Status.PASS
    assert not [*(tmp_path / "tmp").iterdir()]


def test_a_rehearsal_compiles_nothing(tmp_path: Path) -> None:
    facts = probe(tmp_path, {}, hardware="cpu")
    assert {finding.status for finding in judged(facts).values()} == {Status.SKIP}
    assert not [*(tmp_path / "tmp").iterdir()]


def test_without_any_compiler_the_image_is_at_fault(tmp_path: Path) -> None:
    said = judged(probe(tmp_path, {"PATH": str(tmp_path)}))
    finding = said["host.c_compiler"]
    assert finding.status is Status.FAIL
    assert finding.fault is None  # the check's own: the image
    assert "gcc" in finding.next_step
    assert said["host.python_h"].status is Status.SKIP


def test_a_path_that_leaves_the_compiler_out_is_told_as_the_first_way_out(tmp_path: Path) -> None:
    """As after `env -i`; the image is not known to be right either."""
    if not shutil.which("gcc", path="/usr/local/bin:/usr/bin:/bin"):
        pytest.skip("this machine's gcc lies elsewhere")
    for path in (str(tmp_path), ""):
        finding = judged(probe(tmp_path, {"PATH": path}))["host.c_compiler"]
        assert finding.next_step.startswith("set PATH (it does not lead to ")
    environ = {"TMPDIR": str(tmp_path)}
    with compiling(plan_for("h100"), environ) as toolchain:
        assert toolchain.facts().path_lacks == "it is not set"
    assert not probe(tmp_path, {}).path_lacks


def test_nothing_is_tried_where_that_is_known_to_be_in_vain(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path / "tmp")}
    with compiling(plan_for("h100"), environ, why_not="no process is left") as toolchain:
        facts = toolchain.facts()
    assert {found.reason for found in judged(facts).values()} == {"no process is left"}
    assert not (tmp_path / "tmp").exists()


def test_a_temporary_folder_that_is_missing_is_not_made(tmp_path: Path) -> None:
    facts = probe(tmp_path, {"TMPDIR": str(tmp_path / "no" / "such")})
    assert facts.temporary == os.strerror(errno.ENOENT)
    assert not (tmp_path / "no").exists()


def test_a_temporary_folder_that_is_judged_elsewhere_is_told_once(tmp_path: Path) -> None:
    facts = probe(tmp_path, {"TMPDIR": "relative"})
    assert judged(facts)["host.c_compiler"].status is Status.FAIL
    bad = FolderFacts(Folder("temporary files", "relative", "TMPDIR"), "not absolute")
    host = cast("HostFacts", SimpleNamespace(toolchain=facts, caches=(bad,)))
    assert findings(CHECKS, host, plan_for("h100"))["host.c_compiler"].status is Status.SKIP


def test_what_a_compiler_that_hangs_has_in_work_goes_with_it(tmp_path: Path) -> None:
    """gcc writes where TMPDIR says, and cannot clear up when it is ended by force."""
    mine = script(tmp_path / "bin", "mine", 'touch "$TMPDIR/ccXXXX.s"; sleep 60')
    facts = probe(tmp_path, {"CC": str(mine)}, deadline_s=1.0)
    assert facts.attempts.bare.ended is Ended.LATE
    assert not [*(tmp_path / "tmp").iterdir()]


def test_cc_is_not_looked_for_as_triton_does_not(tmp_path: Path) -> None:
    """A folder with nothing but `cc`, as busybox systems have."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cc").symlink_to(GCC)
    assert probe(tmp_path, {"PATH": str(tmp_path / "bin")}).compiler == ""


def test_clang_stands_in_for_gcc(tmp_path: Path) -> None:
    script(tmp_path / "bin", "clang", f'PATH={os.environ["PATH"]} exec {GCC} "$@"')
    facts = probe(tmp_path, {"PATH": str(tmp_path / "bin")})
    assert facts.compiler == str(tmp_path / "bin" / "clang")
    assert facts.attempts.python.ended is Ended.OK


@pytest.mark.parametrize("value", ["/no/such/compiler", "", "gcc -m64", "/etc/passwd", "/bin/true"])
def test_a_cc_that_is_no_compiler_is_a_setting_to_correct(tmp_path: Path, value: str) -> None:
    """Triton runs the whole text as one program's name, even an empty one."""
    finding = judged(probe(tmp_path, {"CC": value}))["host.c_compiler"]
    assert finding.status is Status.FAIL
    assert finding.fault is Fault.CONFIG
    assert "unset CC" in finding.next_step


def test_a_cc_that_works_is_taken_before_the_path(tmp_path: Path) -> None:
    mine = script(tmp_path / "bin", "mine", f'exec {GCC} "$@"')
    finding = judged(probe(tmp_path, {"CC": str(mine)}))["host.c_compiler"]
    assert finding.status is Status.PASS
    assert finding.actual == f"CC={mine}"


def test_a_compiler_without_its_assembler_does_not_work(tmp_path: Path) -> None:
    """A PATH with gcc alone: the compiler proper starts, and `as` is nowhere."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gcc").symlink_to(GCC)
    facts = probe(tmp_path, {"PATH": str(tmp_path / "bin")})
    if facts.attempts.bare.ended is Ended.OK:
        pytest.skip("this gcc knows where its assembler lies")
    finding = judged(facts)["host.c_compiler"]
    assert finding.fault is None
    assert "as" in finding.reason


def test_a_compiler_that_fails_is_told_by_its_own_words(tmp_path: Path) -> None:
    script(tmp_path / "bin", "gcc", "echo 'gcc: fatal error: no cc1 here' >&2; exit 1")
    facts = probe(tmp_path, {"PATH": f"{tmp_path / 'bin'}:/bin"})
    assert facts.attempts.bare.why == "gcc: fatal error: no cc1 here"
    assert "no cc1 here" in judged(facts)["host.c_compiler"].reason


def test_a_compiler_that_is_killed_is_told_by_the_signal(tmp_path: Path) -> None:
    script(tmp_path / "bin", "gcc", "kill -SEGV $$")
    facts = probe(tmp_path, {"PATH": f"{tmp_path / 'bin'}:/bin"})
    assert facts.attempts.bare.ended is Ended.KILLED
    assert "SIGSEGV" in judged(facts)["host.c_compiler"].reason


def test_a_compiler_that_hangs_is_ended_at_the_deadline(tmp_path: Path) -> None:
    script(tmp_path / "bin", "gcc", f"echo $$ > {tmp_path}/pid; sleep 300")
    facts = probe(tmp_path, {"PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin"}, deadline_s=0.5)
    finding = judged(facts)["host.c_compiler"]
    assert facts.attempts.bare.ended is Ended.LATE
    assert finding.fault is Fault.TEMPORARY
    assert "0.5 s" in finding.reason
    assert not working(int((tmp_path / "pid").read_text()))


def test_the_compilers_deadline_lies_within_the_stages() -> None:
    assert deadline_of(0.0) == deadline_of(60.0) == 20.0
    assert deadline_of(2.0) == 1.0


def working(group: int) -> list[psutil.Process]:
    """Processes of a group that are not yet ended; zombies are for process 1 to bury."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return psutil.wait_procs(found, timeout=5)[1]


def test_code_for_another_machine_is_useless(tmp_path: Path) -> None:
    """A cross compiler: what it writes is whole, and this process cannot load it."""
    foreign = 183 if os.uname().machine == "x86_64" else 62  # EM_AARCH64, EM_X86_64
    patch = (
        "import sys; out = sys.argv[sys.argv.index('-o') + 1]; data = bytearray(open(out, 'rb')"
        f".read()); data[18:20] = ({foreign}).to_bytes(2, 'little'); open(out, 'wb').write(data)"
    )
    (tmp_path / "patch.py").write_text(patch)
    other = script(
        tmp_path / "bin", "cross", f'{GCC} "$@" && {sys.executable} {tmp_path}/patch.py "$@"'
    )
    finding = judged(probe(tmp_path, {"CC": str(other)}))["host.c_compiler"]
    assert "another machine" in finding.reason
    assert finding.fault is Fault.CONFIG


def test_missing_headers_of_libc_are_not_blamed_on_python(tmp_path: Path) -> None:
    script(tmp_path / "bin", "gcc", f'exec {GCC} -nostdinc "$@"')
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    said = judged(probe(tmp_path, {"PATH": path}))
    assert "libc6-dev" in said["host.c_compiler"].next_step
    assert said["host.python_h"].status is Status.SKIP


def in_namespace(tmp_path: Path, mount: str, code: str) -> str:
    """What code says where this is mounted for it alone; skips where no mount is allowed."""
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False).returncode:
        pytest.skip("no mount is allowed here")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} && exec {sys.executable} -B -c '{code}'"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


_CODE = """
import os
from tests.test_toolchain import judged
from tests.fakes_preflight import plan_for
from app.probes.toolchain import compiling
with compiling(plan_for("h100"), dict(os.environ)) as toolchain:
    said = judged(toolchain.facts())
for name in ("host.c_compiler", "host.python_h"):
    print(name, said[name].status.value, said[name].fault, said[name].reason)
"""


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_a_python_without_headers_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    include = sysconfig.get_paths()["include"]
    said = in_namespace(tmp_path, f"mount --bind {tmp_path}/empty {include}", _CODE).splitlines()
    assert said[0].startswith("host.c_compiler pass")
    assert said[1] == f"host.python_h fail None there is no Python.h in {include}"


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_a_full_temporary_disk_is_not_the_compilers_fault(tmp_path: Path) -> None:
    said = in_namespace(tmp_path, f"mount -t tmpfs -o size=12k none {tmp_path}", _CODE)
    first = said.splitlines()[0]
    assert first.startswith("host.c_compiler fail read_error")
    assert "No space left" in first


def test_a_temporary_folder_that_takes_no_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = judged(probe(tmp_path, {"TMPDIR": str(tmp_path / "file")}))["host.c_compiler"]
    assert finding.status is Status.FAIL
    assert "temporary folder" in finding.reason


def test_a_relative_temporary_folder_makes_no_folder_here(tmp_path: Path) -> None:
    facts = probe(tmp_path, {"TMPDIR": "some/relative/folder"})
    assert facts.temporary == "it is not an absolute path"
    assert not Path("some").exists()


def test_the_installed_triton_links_to_the_file_by_its_full_name() -> None:
    assert linked_name() == "libcuda.so.1"


def test_a_driver_on_the_library_path_links(tmp_path: Path) -> None:
    """As in a container whose driver is mounted elsewhere; ldconfig knows none on this machine."""
    if "libcuda.so.1" in subprocess.check_output(["/sbin/ldconfig", "-p"], text=True):
        pytest.skip("this machine has a driver of its own")
    file = library(tmp_path / "driver")
    facts = probe(tmp_path, {"LD_LIBRARY_PATH": str(file.parent)})
    assert facts.libcuda.asked == "LD_LIBRARY_PATH"
    assert judged(facts)["host.libcuda_link"].status is Status.PASS


def test_a_node_without_a_driver_is_the_gpu_stages_to_judge(tmp_path: Path) -> None:
    facts = probe(tmp_path, {})
    if facts.libcuda.present:
        pytest.skip("this machine has a driver")
    assert judged(facts)["host.libcuda_link"].status is Status.SKIP


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF\x01\x01"])
def test_a_broken_driver_is_the_gpu_stages_to_judge(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "libcuda.so.1").write_bytes(content)
    facts = probe(tmp_path, {"TRITON_LIBCUDA_PATH": str(tmp_path / "driver")})
    said = judged(facts)
    assert said["host.c_compiler"].status is Status.PASS
    assert said["host.libcuda_link"].status is Status.SKIP
    assert facts.libcuda.broken


def test_a_variable_that_leads_elsewhere_is_a_setting_to_correct(tmp_path: Path) -> None:
    file = library(tmp_path / "driver")
    (tmp_path / "wrong").mkdir()
    variables = {
        "LD_LIBRARY_PATH": str(file.parent),
        "TRITON_LIBCUDA_PATH": str(tmp_path / "wrong"),
    }
    said = judged(probe(tmp_path, variables))
    finding = said["host.libcuda_link"]
    assert said["host.python_h"].status is Status.PASS
    assert finding.fault is Fault.CONFIG
    assert finding.next_step == f"set TRITON_LIBCUDA_PATH to {file.parent}"


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_a_driver_that_only_the_loader_finds_is_named_with_its_folder(tmp_path: Path) -> None:
    """A container in which ldconfig cannot run: Triton asks it before it looks anywhere else."""
    file = library(tmp_path / "driver")
    broken = script(tmp_path, "ldconfig", "echo 'no cache' >&2; exit 1")
    code = (
        "import os; from tests.test_toolchain import judged, probe; from pathlib import Path; "
        f'facts = probe(Path("{tmp_path}"), {{"LD_LIBRARY_PATH": "{file.parent}"}}); '
        'said = judged(facts)["host.libcuda_link"]; '
        "print(said.status.value, said.fault, said.reason, said.next_step, sep=chr(10))"
    )
    said = in_namespace(tmp_path, f"mount --bind {broken} /sbin/ldconfig", code).splitlines()
    assert said[:2] == ["fail", "None"]
    assert said[2].endswith("/sbin/ldconfig -p failed: no cache")
    assert f"TRITON_LIBCUDA_PATH={file.parent}," in said[3]


def test_a_node_without_room_for_a_process_is_busy_and_not_broken() -> None:
    full = Attempt(Ended.NOT_STARTED, "Resource temporarily unavailable", errno.EAGAIN)
    facts = ToolchainFacts(compiler=GCC, python_h=True, attempts=Attempts(full))
    assert judged(facts)["host.c_compiler"].fault is Fault.TEMPORARY


def test_headers_that_only_the_compiler_finds_count() -> None:
    """CPATH and wrappers lead to headers too, and what counts is the compile."""
    fine = Attempt(Ended.OK)
    facts = ToolchainFacts(compiler=GCC, include="/none", attempts=Attempts(fine, fine, fine))
    assert judged(facts)["host.python_h"].status is Status.PASS


def ptxas_of(folder: Path, mode: int) -> Path:
    """A Triton with nothing but its assembler."""
    tool = folder / "triton/backends/nvidia/bin/ptxas"
    tool.parent.mkdir(parents=True)
    (folder / "triton/__init__.py").touch()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(mode)
    return tool


def test_the_installed_assembler_can_be_run(tmp_path: Path) -> None:
    assert find_ptxas({}).problem == ""
    assert judged(probe(tmp_path, {}))["host.ptxas"].status is Status.PASS


def test_an_assembler_without_its_executable_bit_is_the_images_fault(tmp_path: Path) -> None:
    tool = ptxas_of(tmp_path, 0o644)
    facts = ToolchainFacts(ptxas=find_ptxas({}, [str(tmp_path)]))
    finding = judged(facts)["host.ptxas"]
    assert finding.reason == f"ptxas cannot be run: this user may not run it ({tool})"
    assert finding.fault is None


def test_an_assembler_that_a_variable_names_is_a_setting_to_correct(tmp_path: Path) -> None:
    ptxas_of(tmp_path, 0o755)
    (tmp_path / "mine").touch(0o644)
    variables = {"TRITON_PTXAS_PATH": str(tmp_path / "mine")}
    finding = judged(ToolchainFacts(ptxas=find_ptxas(variables, [str(tmp_path)])))["host.ptxas"]
    assert finding.fault is Fault.CONFIG
    gone = {"TRITON_PTXAS_PATH": str(tmp_path / "gone")}  # Triton takes its own then
    assert find_ptxas(gone, [str(tmp_path)]).problem == ""


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_an_assembler_on_a_noexec_mount_is_told(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.test_toolchain import ptxas_of; "
        "from app.probes.ptxas import find_ptxas; "
        f'ptxas_of(Path("{tmp_path}"), 0o755); '
        f'print(find_ptxas({{}}, ["{tmp_path}"]).problem)'
    )
    said = in_namespace(tmp_path, f"mount -t tmpfs -o noexec none {tmp_path}", code)
    assert said == "its file system is mounted noexec"
