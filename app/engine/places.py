"""Where the stack's code comes from, and where the code that it generates will go."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from app.facts.packages import REQUIRED_PACKAGES
from app.facts.stack import CodeFolder, Origin


def origins() -> Iterator[Origin]:
    """Every package that is imported and has a record, by the file that was really run.

    What a test has put in the place of a module has no file of its own, and is passed over.
    """
    for name in REQUIRED_PACKAGES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if type(file) is not str:
            continue
        try:
            record = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # `stack.packages` says so
        folder = Path(str(record.locate_file("")))
        checkout = _checkout(record)
        yield Origin(
            module=name,
            file=file,
            folder=str(folder),
            recorded=_lies_in(file, folder),
            editable=checkout is not None and _lies_in(file, checkout),
        )


def _lies_in(file: str, folder: Path) -> bool:
    """As it is named, or where links lead: some installers link files from their own cache."""
    path = Path(file)
    return path.is_relative_to(folder) or path.resolve().is_relative_to(folder.resolve())


def _checkout(record: metadata.Distribution) -> Path | None:
    """The folder that an editable install runs from (PEP 610)."""
    origin = json.loads(record.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlsplit(origin["url"]).path))


def code_folders() -> tuple[CodeFolder, ...]:
    """What the libraries themselves say, now that they have read their variables.

    Inductor's comes to life with torch: its import writes its own default into the environment
    where nothing stands there, which then looks as if a user had chosen it.
    """
    asked = {"triton": _triton, "torch": _inductor, "unsloth_zoo": _unsloth}
    return tuple(_code_folder(name, *ask()) for name, ask in asked.items() if name in sys.modules)


def _code_folder(library: str, used: str, usual: str) -> CodeFolder:
    return CodeFolder(library, used, pinned=Path(used).is_absolute() and used != usual)


def _triton() -> tuple[str, str]:
    """The folder in use, and the one that it is without a variable."""
    from triton import knobs  # type: ignore[import-untyped]

    return str(knobs.cache.dir), str(knobs.cache.get_triton_dir("cache"))


def _inductor() -> tuple[str, str]:
    from torch._inductor.runtime import cache_dir_utils

    return cache_dir_utils.cache_dir(), cache_dir_utils.default_cache_dir()


def _unsloth() -> tuple[str, str]:
    """Read once; without a variable it is a folder of the working folder."""
    from unsloth_zoo import compiler

    return str(compiler.UNSLOTH_COMPILE_LOCATION), "unsloth_compiled_cache"
