"""Proofs that run something: compilers, the boot's own entry, the imports of the stack."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

from app.bake.imports_child import DONE
from app.bake.scene import Scene, run
from app.checks import host
from app.facts.architectures import machine_code
from app.facts.words import one_line
from app.outcome import Finding, Status, failed, passed, skipped
from app.probes.ptxas import find_ptxas

_REBUILD = "build the environment anew from the lock, and look at what was taken out of it"
_SHORT_S = 60.0
# The least that NVIDIA's assembler takes. It refuses an architecture that it does not know; this
# version of the language knows those from 5.0 to 9.0.
_PTX = """\
.version 8.0
.target sm_{}{}
.address_size 64
.visible .entry bootguard_proof() {{ ret; }}
"""


def of_host(check_id: str) -> Callable[[Scene], Finding]:
    """A check of the boot's host stage, asked here before any node can fail by it."""
    (check,) = (check for check in host.CHECKS if check.id == check_id)
    return lambda scene: check.judge(scene.host, scene.plan)


def ptxas(scene: Scene) -> Finding:
    """It runs, and assembles for the profile's hardware: Triton asks for both at every kernel."""
    wanted = scene.plan.profile.compute_capability
    if wanted is None:
        return skipped("the rehearsal assembles nothing")
    tool = find_ptxas(scene.variables, [str(scene.site)])
    name = machine_code(wanted)
    expected = f"Triton's ptxas, which assembles for {name}"
    problem, release = tool.problem or ("" if tool.file else "Triton is not installed"), ""
    if not problem:
        ran = run([tool.file, "--version"], scene.variables, scene.scratch, _SHORT_S)
        lines = [line for line in ran.out.splitlines() if "release" in line]
        problem, release = ran.problem, lines[0] if lines else "it tells no release"
    if not problem:
        source, output = scene.scratch / "proof.ptx", scene.scratch / "proof.cubin"
        source.write_text(_PTX.format(*wanted), encoding="utf-8")
        command = [tool.file, f"-arch={name}", str(source), "-o", str(output)]
        problem = run(command, scene.variables, scene.scratch, _SHORT_S).problem
        problem = problem or ("" if output.is_file() else "it wrote nothing")
    if problem:
        return failed(
            f"Triton's ptxas does not assemble for {scene.plan.profile.title}",
            expected=expected,
            actual=one_line(problem),
            next_step=_REBUILD,
        )
    return passed(f"ptxas assembles for {name}: {one_line(release)}", expected=expected)


def entry(scene: Scene) -> Finding:
    """The entry point starts."""
    ran = scene.run("-m", "app.boot", "--help", deadline_s=_SHORT_S)
    if ran.problem or "usage: python -m app.boot" not in ran.out:
        return failed(
            "python -m app.boot --help does not work",
            expected="the text of its help, and exit status 0",
            actual=one_line(ran.problem or "it printed something else", 400),
            next_step="look at what this image has for `app` and for its packages",
        )
    return passed("python -m app.boot --help works")


def imports(scene: Scene) -> Finding:
    """The whole stack comes up, as in a rehearsal: what does not fit together shows here."""
    ran = scene.run("-m", "app.bake.imports_child")
    lines = list(_lines(ran.out))
    findings = [Finding(**each) for line in lines if isinstance(line, list) for each in line]
    bad = [each for each in findings if each.status == Status.FAIL]
    if bad:
        return failed(
            "; ".join(each.reason for each in bad),
            expected=bad[0].expected,
            actual="; ".join(each.actual for each in bad),
            next_step=_REBUILD,
        )
    if ran.problem or DONE not in lines:
        names = [line for line in lines if isinstance(line, str)]
        what = f"importing {names[-1]}" if names else "starting Python"
        return failed(
            f"{what} fails",
            expected="every package that a boot imports can be imported",
            actual=one_line(ran.problem or "it ends the process, with status 0", 400),
            next_step=_REBUILD,
        )
    return passed(findings[0].reason)


def _lines(out: str) -> Iterator[object]:
    """What the child told; libraries print lines of their own."""
    for line in out.splitlines():
        if line.startswith(("[{", '"')):
            with contextlib.suppress(ValueError):
                yield json.loads(line)
