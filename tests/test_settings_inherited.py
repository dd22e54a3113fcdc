"""Facts of variables that others read: refused ones, ranks, and wrong types."""

from __future__ import annotations

import ast
from importlib.metadata import distribution
from pathlib import Path

import pytest

from app.settings_inherited import DYNAMO_BACKENDS, REFUSED, inherited_problems


@pytest.mark.parametrize("name", [*REFUSED, "UNSLOTH_FORCE_", "UNSLOTH_FORCE_FUSED_LORA"])
def test_what_changes_correctness_is_refused_by_name(name: str) -> None:
    """Also with value 0: what counts as off differs from reader to reader."""
    for value in ("1", "0", ""):
        (problem,) = inherited_problems({name: value})
        assert problem.name == name
        assert problem.suggestion.startswith("unset it: ")


@pytest.mark.parametrize(
    "name",
    [
        *("UNSLOTH_COMPILE_DISABLE", "UNSLOTH_COMPILE_LOCATION", "UNSLOTH_MEGA_CACHE"),
        *("UNSLOTH_DISABLE_STATISTICS", "UNSLOTH_DISABLE_CPU_FALLBACK", "UNSLOTH_IS_PRESENT"),
        *("UNSLOTH_RETURN_LOGITS", "HF_HOME", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_users_set_for_good_reasons_passes(name: str) -> None:
    assert not inherited_problems({name: "1"})


def test_every_refused_name_is_read_by_the_locked_unsloth() -> None:
    """Read as text, not imported; a name that a new pin dropped goes from the table."""
    text = ""
    for package in ("unsloth", "unsloth_zoo"):
        folder = Path(str(distribution(package).locate_file(package)))
        text += "".join(file.read_text(errors="replace") for file in sorted(folder.rglob("*.py")))
    assert not [name for name in REFUSED if f'"{name}"' not in text]


@pytest.mark.parametrize(
    "name",
    [
        *("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
        *("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
    ],
)
def test_several_ranks_are_an_error_in_words(name: str) -> None:
    assert not inherited_problems({name: "1"})
    (problem,) = inherited_problems({name: "2"})
    assert "ranks" in problem.suggestion
    for value in ("", "0", "-1", "two", "1.0", " 1", "\N{SUPERSCRIPT TWO}"):
        (problem,) = inherited_problems({name: value})
        assert problem.suggestion == "unset it"


def test_arrays_are_not_ranks() -> None:
    assert not inherited_problems({"SLURM_ARRAY_TASK_COUNT": "4", "JOB_COMPLETION_INDEX": "3"})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("HF_HUB_ETAG_TIMEOUT", ["10"], ["", "30s", "0", "1.5"]),
        ("HF_HUB_DOWNLOAD_TIMEOUT", ["10"], ["", "30s", "0", "-1"]),
        ("LOCAL_RANK", ["0", "-1"], ["", "x", "0.0"]),
        ("HF_HUB_OFFLINE", ["", "1", "true", "OFF"], ["2", "t", "offline", "1 "]),
        ("HF_DATASETS_IN_MEMORY_MAX_SIZE", ["0", "1e9", " 2.5 "], ["", "x", "1GB"]),
        ("USE_TORCH_XLA", ["1", "f", "No"], ["", "maybe", "2"]),
        ("ACCELERATE_USE_CPU", ["true", "0"], ["", "maybe"]),
        ("ACCELERATE_DEBUG_MODE", ["true", "0"], ["", "maybe"]),
        ("ACCELERATE_DYNAMO_USE_DYNAMIC", ["true", "0"], ["", "maybe"]),
        ("ACCELERATE_DYNAMO_USE_FULLGRAPH", ["true", "0"], ["", "maybe"]),
        ("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", ["true", "0"], ["", "maybe"]),
        ("ACCELERATE_DYNAMO_BACKEND", ["no", "INDUCTOR", "eager"], ["", "bogus"]),
        ("ACCELERATE_FP8_BACKEND", ["NO", "AO"], ["", "no", "bogus"]),
        ("ACCELERATE_TORCH_DEVICE", ["cpu", "cuda", "cuda:9"], ["", "CUDA", "cuda:00", "meta"]),
        ("ACCELERATE_ENABLE_RICH", ["true", "0"], ["", "maybe"]),
        ("ACCELERATE_MIXED_PRECISION", ["", "no", "BF16", "fp8"], ["half", "bfloat16", "16"]),
        ("TORCHINDUCTOR_COMPILE_THREADS", ["1", " 8 "], ["", "abc", "1.5"]),
        ("LOGLEVEL", ["INFO", "WARN"], ["info", "20", "", "loud"]),
        ("ACCELERATE_LOG_LEVEL", ["INFO", "debug"], ["20", "", "loud"]),
        ("TQDM_NCOLS", ["80"], ["", "abc", "8.5"]),
        ("TQDM_MININTERVAL", ["10", "0.5"], ["", "x"]),
        ("UNSLOTH_GEMV_MAX_ROWS", ["4"], ["", "x"]),
        ("TORCHDYNAMO_REPRO_LEVEL", ["2"], ["x"]),
        ("TORCH_COMPILE_DEBUG", ["0", "1"], ["true", ""]),
        ("TORCHINDUCTOR_WORKER_START", ["fork", "subprocess"], ["", "Fork", "thread"]),
        ("PYTORCH_MATCHER_LOGLEVEL", ["info", "DEBUG"], ["", "loud"]),
        ("TIMM_FUSED_ATTN", ["0", "2"], ["on", ""]),
        ("VIDEO_MAX_PIXELS", ["1e6"], ["", "1M"]),
        ("TORCH_DISTRIBUTED_DEBUG", ["OFF", "info", "DETAIL"], ["", "garbage", "1"]),
        ("PYTHONOPTIMIZE", ["", "0", "1", "x", "2x", "-3"], ["2", "3", " 2", "02", "+2"]),
        (
            "PYTORCH_CUDA_ALLOC_CONF",
            [
                *("", " ", "a:b", "a:b,", "a:b,,c:d", ",a:b", "max_split_size_mb: 128, x:y"),
                "roundup_power2_divisions:[256:1,512:2],expandable_segments:True",
            ],
            ["garbage", "a=b", "a:b;c:d", "a:b,c", "a:", ":b", "a:b:c", "a:[b:c", "garbage,"],
        ),
    ],
)
def test_wrong_types_that_imports_die_of_are_named(
    name: str, good: list[str], bad: list[str]
) -> None:
    """huggingface_hub raises a ValueError without a name, and reads HF_HUB_OFFLINE=2 as online."""
    assert not [value for value in good if inherited_problems({name: value})]
    for value in bad:
        (problem,) = inherited_problems({name: value})
        assert problem.name == name


def test_the_backends_of_dynamo_are_accelerates() -> None:
    file = Path(str(distribution("accelerate").locate_file("accelerate/utils/dataclasses.py")))
    (kind,) = (
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "DynamoBackend"
    )
    values = [node.value for node in kind.body if isinstance(node, ast.Assign)]
    assert {ast.literal_eval(value) for value in values} == DYNAMO_BACKENDS


# Packages that every boot imports, and that read numbers at the top of modules.
_READERS = ("torch/_inductor", "torch/fx/experimental", "timm/layers", "timm/models", "unsloth")
_NOT_IMPORTED = ("studio", "tests", "benchmarks", "mlx")
_CAUGHT = ("ValueError", "Exception")


class _NumbersAtTheTop(ast.NodeVisitor):
    """Names in `int(os.environ.get(NAME))` and its like, outside of functions and of `try`."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Not while it is imported."""

    def visit_Try(self, node: ast.Try) -> None:
        kinds = " ".join(ast.unparse(each.type) for each in node.handlers if each.type)
        if not any(name in kinds for name in _CAUGHT):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func) in ("int", "float"):
            self.names.update(name for part in ast.walk(node) if (name := _read(part)))
        self.generic_visit(node)


def _read(node: ast.AST) -> str:
    """The variable that a call or a subscript reads."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("environ.get", "getenv")):
        key = node.args[0]
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
        key = node.slice
    else:
        return ""
    return str(key.value) if isinstance(key, ast.Constant) else ""


def test_every_number_that_an_import_reads_is_judged() -> None:
    """A new pin that reads another one is seen here."""
    found = _NumbersAtTheTop()
    for reader in _READERS:
        folder = Path(str(distribution(reader.partition("/")[0]).locate_file(reader)))
        for file in folder.rglob("*.py"):
            text = file.read_text(errors="replace")
            reads = "environ" in text or "getenv" in text
            if reads and not {*file.parts} & {*_NOT_IMPORTED}:
                found.visit(ast.parse(text))
    assert "TIMM_FUSED_ATTN" in found.names
    assert not [name for name in found.names if not inherited_problems({name: "x"})]


def test_a_prefix_of_a_variable_is_no_variable() -> None:
    """tqdm reads what it knows; bars of others may have the same prefix."""
    assert not inherited_problems({"TQDM_DISABLE": "x", "TQDM_COLOUR": "red", "TQDM_OTHER": "x"})


def test_the_source_is_who_reads_the_variable_and_not_our_help() -> None:
    found = inherited_problems(
        {"HF_HUB_ETAG_TIMEOUT": "30s", "UNSLOTH_FORCE_X": "1", "WORLD_SIZE": "2"}
    )
    assert len(found) == 3
    assert all("--help" not in problem.finding.source for problem in found)
