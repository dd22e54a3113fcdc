"""Facts about the shape of the code: who may import what, and what stands in one place only."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.checks import Check
from app.version import __version__

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "app"
MODULES = sorted(APP.rglob("*.py"))
CHECK_MODULES = sorted(path.stem for path in (APP / "checks").glob("*.py") if path.stem[0] != "_")
HEAVY = {"torch", "unsloth", "unsloth_zoo", "transformers", "peft", "trl", "bitsandbytes"}

LEAVES = {"streams", "outcome", "stages", "version", "config", "profiles", "lifeline"}
LEAVES |= {"limits", "text_file", "traces", "signals"}
# Everything a layer may import of the app, besides its own layer. Arrows go down only.
BELOW = {
    "errors": {"outcome"},
    "exits": {"outcome"},
    "plan": {"config", "profiles"},
    "slippage": {"config", "profiles"},
    "image": {"errors", "outcome", "plan", "profiles"},
    "facts": {"outcome", "plan", "profiles"},
    "checks": LEAVES | {"plan", "facts", "sections", "sections_numerics"},
    "probes": LEAVES | {"errors", "plan", "facts", "rehearsal"},
    "blame": {"errors", "facts", "outcome", "profiles"},
    "engine": LEAVES | {"blame", "errors", "plan", "facts", "slippage"},
    "bake": LEAVES | {"errors", "plan", "facts", "image", "probes", "checks", "engine"},
}


def name_of(path: Path) -> str:
    return path.relative_to(APP).with_suffix("").as_posix()


def layer_of(path: Path) -> str:
    return path.relative_to(APP).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Dotted names of all imports of a module, also the late ones."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "app":
            yield from (f"app.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_arrows_go_down_only(path: Path) -> None:
    layer = layer_of(path)
    of_app = {name.split(".")[1] for name in imported(path) if name.startswith("app.")}
    if layer in LEAVES:
        assert not of_app
    elif layer in BELOW:
        assert of_app <= BELOW[layer] | {layer}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_engine_imports_torch(path: Path) -> None:
    if layer_of(path) != "engine":
        assert not {name.split(".")[0] for name in imported(path)} & HEAVY


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_entry_point_and_the_pinning_touch_the_environment(path: Path) -> None:
    """All else gets the environment as a value."""
    touches = any(
        isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "putenv"}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if not (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        )
    )
    if touches:
        assert name_of(path) in {
            "boot",  # reads it once
            "bake/__main__",  # the same for an image under proof
            "engine/environment",  # pins it before heavy imports
            "inprocess",  # has no boot above it
        }


_BROAD = {"Exception", "BaseException", "(Exception, SystemExit)"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_exception_is_swallowed_in_three_named_places_only(path: Path) -> None:
    """Step guard, boot's edge, job's edge; a translation that ends in `raise` swallows nothing."""
    broad = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in _BROAD)
        and not isinstance(node.body[-1], ast.Raise)
    ]
    assert len(broad) == {"pipeline": 1, "supervisor": 1, "engine/job": 1}.get(name_of(path), 0)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_branches_on_the_name_of_a_profile(path: Path) -> None:
    """Torch's device type `cpu` is a fact; `v100` and `h100` are names."""
    if name_of(path) in {"profiles", "config"}:
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {"v100", "h100"}
    branching = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.Match | ast.Dict | ast.IfExp)
        for child in ast.walk(node)
        if (isinstance(child, ast.Constant) and child.value in names)
        or (isinstance(node, ast.Compare) and "profile.name" in ast.unparse(node))
    ]
    assert not branching, [ast.unparse(node) for node in branching]


@pytest.mark.parametrize("name", CHECK_MODULES)
def test_every_judge_that_is_written_is_listed(name: str) -> None:
    """A judge is a public function from facts and plan to a Finding, there or in a family's module.

    `app.checks.precision` makes its judges of the rules of `app.checks._contract`.
    """
    module = importlib.import_module(f"app.checks.{name}")
    checks: tuple[Check[object], ...] = module.CHECKS
    listed = {getattr(check.judge, "__name__", "") for check in checks}
    families = [each for each in vars(module).values() if inspect.ismodule(each)]
    written = {
        function.__name__
        for place in (module, *families)
        for function in vars(place).values()
        if inspect.isfunction(function)
        and function.__module__.startswith("app.checks.")
        and not function.__name__.startswith("_")
        and str(inspect.signature(function).return_annotation) == "Finding"
        and [str(p.annotation) for p in inspect.signature(function).parameters.values()][1:]
        == ["Plan"]
    }
    if name != "precision":
        assert written
    assert written <= listed


def test_every_rule_of_the_precision_contract_is_asked() -> None:
    contract = importlib.import_module("app.checks._contract")
    precision = importlib.import_module("app.checks.precision")
    rules = {
        f"precision.{name}"
        for name, function in vars(contract).items()
        if inspect.isfunction(function)
        and str(inspect.signature(function).return_annotation) == "Iterator[Offender]"
        and not name.startswith("_")
    }
    assert rules == {check.id for check in precision.CHECKS}


@pytest.mark.parametrize("name", CHECK_MODULES)
def test_checks_are_named_after_their_stage_and_each_once(name: str) -> None:
    ids = [check.id for check in importlib.import_module(f"app.checks.{name}").CHECKS]
    assert len(set(ids)) == len(ids)
    parts = {"forecast": "checkpoint", "kernels": "stack"}
    parts |= dict.fromkeys(("cast", "golden", "fingerprint", "speed"), "numerics")
    stage = parts.get(name, name)
    assert all(check_id.startswith(f"{stage}.") for check_id in ids)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_fits_in_one_head(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 260
    long = [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 50
    ]
    assert not long


def test_the_supervisor_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, app.boot, app.supervisor; "
        f"print(sorted({HEAVY!r} & {{name.split('.')[0] for name in sys.modules}}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_the_package_needs_no_torch() -> None:
    """A None in `sys.modules` makes every import of that name fail."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r})); "
        "import app; print(app.BootConfig().base_model_id)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "unsloth/gemma-3n-E2B-it"


def test_the_version_stands_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
