"""`boot_gemma` where a test has put a double in the place of Unsloth or of its loader.

Imports nothing heavy before it is known to be a double.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from types import CodeType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from app import slippage
from app.engine.arguments import adapter_arguments
from app.plan import Plan

_LOG = logging.getLogger(__name__)
# What the engine calls. One of them replaced makes the pair a double: a guard that sees half of a
# real load proves nothing.
_LOADERS = ("from_pretrained", "get_peft_model")
# The CPU backend's loaders live in the second one.
_DISTRIBUTIONS = ("unsloth", "unsloth_zoo")


def why_double() -> str | None:
    """Why `unsloth` in this process is not the installed one, None where it is.

    Real is what comes from the files of the installed distribution: the module, and the code of
    both loaders. Names prove nothing: `functools.wraps` copies them, and a stub may have any. Where
    Unsloth is not imported yet, the import path tells. One that is missing is no double either: the
    engine names what is missing.
    """
    if "unsloth" not in sys.modules:
        spec = util.find_spec("unsloth")
        if spec is None or _is_installed(spec.origin):
            return None
        return f"unsloth is {spec.origin or 'a folder without __init__.py'}"
    module: object = sys.modules["unsloth"]
    if module is None:  # which forbids the import
        return None
    if type(getattr(module, "DEVICE_TYPE", None)) is not str:
        return "the module unsloth has no DEVICE_TYPE"
    origin = getattr(module, "__file__", None)
    if not _is_installed(origin):
        return f"the module unsloth is {origin}"
    return next(filter(None, map(_why_replaced, _LOADERS)), None)


def _why_replaced(name: str) -> str | None:
    """The real loaders are decorated, with code of Unsloth's own: the outermost layer decides."""
    loader = getattr(getattr(sys.modules["unsloth"], "FastModel", None), name, None)
    code = getattr(loader, "__code__", None)
    if type(code) is not CodeType:
        return f"FastModel.{name} is a {type(loader).__name__}"
    return None if _is_installed(code.co_filename) else f"FastModel.{name} is {code.co_filename}"


def _is_installed(file: object) -> bool:
    """Whether a file is one of the installed distributions'; doubles offer anything as a name."""
    if type(file) is not str:
        return False
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in _folders())


def _folders() -> Iterator[Path]:
    for name in _DISTRIBUTIONS:
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        yield Path(str(found.locate_file(name))).resolve()
        # An editable install runs from its checkout (PEP 610).
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            yield (Path(url2pathname(urlsplit(origin["url"]).path)) / name).resolve()


def boot(plan: Plan, why: str) -> tuple[Any, Any]:
    """The same calls on a test's double of FastModel: no folder, no census, dtypes only.

    A double's model may offer nothing but `parameters()`, once: it is judged by that before the
    adapter, and after it only where it is a real module. `why` is logged, so that nobody takes
    this for the guard of a real load.
    """
    _LOG.warning("bootguard judges dtypes only, as for a test's double: %s", why)
    import torch
    from unsloth import FastModel

    request = plan.request
    model, tokenizer = FastModel.from_pretrained(
        request.base_model_id,
        max_seq_length=request.max_seq_length,
        load_in_4bit=request.load_in_4bit,
        dtype=getattr(torch, plan.profile.compute_dtype),
    )
    slippage.judge(model, plan.profile)
    adapted = FastModel.get_peft_model(model, **adapter_arguments(request))
    if slippage.is_module(adapted):
        slippage.judge(adapted, plan.profile)
    return adapted, tokenizer
