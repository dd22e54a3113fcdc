"""System calls that a profile of seccomp refuses, and devices that are not there.

What cannot be asked is unread and no failure; without what every boot needs the reason is named.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
# man 2 seccomp: a filter that answers one call with an error, then the program.
REFUSE = r"""
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/prctl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

int main(int count, char **words) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(words[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | atoi(words[2])),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 77;
    execvp(words[3], words + 3);
    return 78;
}
"""
LOOK = """
import json
from pathlib import Path
from app.probes.limits import probe_limits
from app.probes.ptxas import find_ptxas
from app.probes.shared_memory import probe_shared_memory

limits, memory = probe_limits(Path("/proc")), probe_shared_memory(Path.cwd(), most=2**20)
print(json.dumps({
    "cpus": limits.n_cpus, "files": limits.resource("NOFILE"), "ptxas": find_ptxas({}).problem,
    "memory": memory.problem, "free": memory.free_bytes,
}))
"""
_CALLS = {"prlimit64": 302, "sched_getaffinity": 204, "fallocate": 285, "statfs": 137}  # x86-64
_NEEDED = {"memfd_create": 319, "setpgid": 109}
pytestmark = pytest.mark.skipif(
    os.uname().machine != "x86_64" or not shutil.which("gcc"), reason="numbers of x86-64, and gcc"
)


@pytest.fixture(scope="module")
def refuse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that refuses a call to another one."""
    path = tmp_path_factory.mktemp("refuse") / "refuse"
    subprocess.run(["gcc", "-x", "c", "-", "-o", path], input=REFUSE.encode(), check=True)
    return path


def seen(refuse: Path, folder: Path, number: int, answer: int) -> dict[str, object]:
    """What the probes say where that call is answered with that error."""
    done = subprocess.run(
        [refuse, str(number), str(answer), sys.executable, "-c", LOOK],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("no filters here")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("call", _NEEDED)
def test_a_call_that_every_boot_makes_is_a_policys_to_allow(
    refuse: Path, tmp_path: Path, call: str
) -> None:
    program = [str(refuse), str(_NEEDED[call]), str(errno.EPERM), sys.executable, "-m", "app.boot"]
    verdict = boot(tmp_path, program)
    assert verdict["exit"] == 78
    assert "Operation not permitted" in str(verdict["reason"])
    assert "profile of seccomp" in str(verdict["next_step"])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_container_without_its_devices_is_told_so(tmp_path: Path) -> None:
    script = 'mount -t tmpfs none /dev && exec "$0" -m app.boot'
    verdict = boot(tmp_path, ["unshare", "-m", "/bin/sh", "-c", script, sys.executable])
    assert verdict["exit"] == 78
    assert verdict["reason"] == "/dev/null cannot be opened: No such file or directory"
    assert "/dev" in str(verdict["next_step"])
    assert Path(str(verdict["report"])).is_file()


def boot(folder: Path, program: list[str]) -> dict[str, object]:
    """The verdict of a boot that this program starts."""
    done = subprocess.run(
        program,
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(REPOSITORY),
            "BOOT_HARDWARE": "cpu",
            "BOOT_STOP_AFTER": "host",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no filters or mounts here")
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("answer", [errno.EPERM, errno.ENOSYS])
@pytest.mark.parametrize("call", _CALLS)
def test_a_refused_call_leaves_a_fact_unread_and_nothing_fails(
    refuse: Path, tmp_path: Path, call: str, answer: int
) -> None:
    found = seen(refuse, tmp_path, _CALLS[call], answer)
    assert found["cpus"]
    assert (found["ptxas"], found["memory"]) == ("", "")
    assert (found["free"] is None) is (call == "statfs")
    if call == "prlimit64":
        assert found["files"] is None
    assert not list(tmp_path.iterdir())
