"""Judges of where code comes from and goes to. The checks are listed in `app.checks.stack`."""

from __future__ import annotations

from app.checks import Check
from app.facts.stack import StackFacts
from app.facts.words import listed, one_line
from app.outcome import Fault, Finding, Severity, failed, passed, skipped, warned
from app.plan import Plan

_BY_MODEL = "unsloth_zoo"


def origins(facts: StackFacts, plan: Plan) -> Finding:
    """Whether what was imported is what the records, and so the lock, speak of.

    Outside an image an editable install is its owner's choice; an image promises its lock.
    """
    expected = "every package from the folder that has its record"
    strays = [each for each in facts.origins if not (each.recorded or each.editable)]
    checkouts = [each for each in facts.origins if each.editable and not each.recorded]
    if strays:
        judged = failed if plan.baked is not None else warned
        more = f" (+{len(strays) - 1} more)" if len(strays) > 1 else ""
        return judged(
            f"{strays[0].module} was imported from {one_line(strays[0].file)}, and the version "
            f"that is installed is not it{more}",
            expected=expected,
            actual=listed((f"{each.file}, not in {each.folder}" for each in strays), between="; "),
            next_step="take that folder out of PYTHONPATH (and of sys.path), and set "
            "PYTHONNOUSERSITE=1",
        )
    names = listed(f"{each.module} ({each.file})" for each in checkouts)
    if checkouts and plan.baked is not None:
        return warned(
            f"not as the lock has it: an editable install of {names}",
            expected=expected,
            actual=names,
            next_step="install a built wheel into the image; a checkout can change under its "
            "version",
        )
    note = f"; by an editable install: {names}" if checkouts else ""
    return passed(f"{len(facts.origins)} packages lie where their records are{note}")


def compile_cache(facts: StackFacts, plan: Plan) -> Finding:
    """Whether generated code goes to the folders that were set for it.

    Triton and Inductor name what they keep by a digest, device included, so that a shared folder
    is only worth a note. Unsloth names its files by the model alone.
    """
    folders = facts.code_folders
    if not folders:
        return skipped("no library that generates code is there")
    told = listed((f"{each.library}: {each.path}" for each in folders), between="; ")
    usual = [each.library for each in folders if not each.pinned]
    if _BY_MODEL in usual:
        return warned(
            "Unsloth's generated code goes to a folder that all hardware shares",
            expected=f"a folder for {plan.profile.name} alone",
            actual=told,
            next_step="let bootguard import Unsloth, or set UNSLOTH_COMPILE_LOCATION before that "
            "import",
        )
    note = f", but for {listed(usual)}, which shares its usual one" if usual else ""
    return passed(f"generated code goes to folders that were set for it{note}", actual=told)


CHECKS: tuple[Check[StackFacts], ...] = (
    Check(
        "stack.origins",
        Fault.INTERNAL,
        "the imported modules' files, and the records of installed packages",
        origins,
        cause="PYTHONPATH, a user's site or a changed sys.path that brings another copy",
        fix="take that folder off the path; install what is meant into the environment",
    ),
    Check(
        "stack.compile_cache",
        Fault.CONFIG,
        "triton.knobs, torch._inductor and unsloth_zoo.compiler, asked for their folders",
        compile_cache,
        Severity.WARNING,
        cause="Unsloth was imported before the environment was pinned",
        fix="let bootguard import Unsloth, or set UNSLOTH_COMPILE_LOCATION before that import",
    ),
)
