"""The judge of the job's target: is the function there, and can it be called."""

from __future__ import annotations

from difflib import get_close_matches

from app.checks import Check
from app.facts.disk import fault_of as disk_fault
from app.facts.host import HostFacts
from app.facts.job_target import Found, JobTargetFacts
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan


def job(facts: HostFacts, _plan: Plan) -> Finding:
    """A misspelt target, found now and not after the model is loaded."""
    found = facts.job
    if found is None:
        return skipped("no BOOT_JOB is asked for")
    module, _, function = found.target.partition(":")
    expected = f"a module {module} with a function {function}"
    if found.found is Found.FUNCTION:
        return passed(f"{found.target} is in {one_line(found.file)}", expected=expected)
    if found.found in (Found.MODULE, Found.UNKNOWN):
        reason = f"whether {found.target} is there shows only on import: {found.why}"
        return passed(reason, expected=expected, actual=found.file or found.why)
    reason, actual, step = _wrong_job(found, module, function)
    fault = disk_fault(found.errno) if found.found is Found.UNREADABLE else None
    return failed(reason, expected=expected, actual=actual, next_step=step, fault=fault)


def _wrong_job(found: JobTargetFacts, module: str, function: str) -> tuple[str, str, str]:
    """Reason, actual and next step of a target that cannot be called."""
    file = one_line(found.file)
    where = file + (f", line {found.line}" if found.line else "")
    match found.found:
        case Found.NO_MODULE:
            reason = f"the job's module is not found: {found.why}"
            return reason, f"looked in {listed(found.searched)}", _module_step(module)
        case Found.NO_FUNCTION:
            reason = f"the job's module has no {function}: {file or found.why}"
            actual = f"defined there: {listed(found.names) or 'no function'}"
            return reason, actual, _function_step(module, function, found.names)
        case Found.NOT_CALLED_SO:
            reason = f"the job's function cannot be called as it will be: {found.why}"
            step = f"define it as def {function}(model, tokenizer, report) ({where})"
            return reason, f"{found.why} ({where})", step
        case Found.BROKEN:
            reason = f"the job's module is no valid Python: {found.why} ({where})"
            return reason, f"{found.why} ({where})", f"correct {where}"
    reason = f"the job's module cannot be read: {found.why} ({file})"
    return reason, found.why, f"let this user read {file}, or look at its disk"


def _module_step(module: str) -> str:
    """Where a module has to lie."""
    first = module.partition(".")[0]
    if first == "app":
        return "give the package another name: `app` is bootguard's own, and comes first"
    return (
        f"correct BOOT_JOB, or let the folder that holds {first} be the working folder or in"
        f" PYTHONPATH: the working folder comes last, and the first {first} on the path counts"
    )


def _function_step(module: str, function: str, names: tuple[str, ...]) -> str:
    near = get_close_matches(function, names, n=1)
    if near:
        return f"set BOOT_JOB={module}:{one_line(near[0])}, or define {function} in {module}"
    return f"define {function} in {module}, or name another function in BOOT_JOB"


CHECKS: tuple[Check[HostFacts], ...] = (
    Check(
        "host.job",
        Fault.CONFIG,
        "the module's file, not imported",
        job,
        cause="BOOT_JOB is misspelt, its folder is not on PYTHONPATH or not mounted, or the "
        "function takes other arguments.",
        fix="Name it as package.module:function; the function takes (model, tokenizer, report).",
    ),
)
