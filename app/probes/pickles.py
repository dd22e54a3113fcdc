"""Reads what pickled weights hold without unpickling: torch's archives and its older format.

An archive (torch 1.6 and later) is a zip file with `data.pkl`, the program, and one record a
storage below `data/`. The older format is five pickles in a row, then the storages. Which file a
loader takes is transformers 5.17's order: `pytorch_model.bin`, else its index.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from app.facts.checkpoint import TensorHeader
from app.facts.pickles import PickledFile, PickledWeights
from app.facts.words import one_line
from app.probes.files import opened
from app.probes.opcodes import Machine, PickleError, read_pickle
from app.probes.pickled_tensors import Storages, code_in, tensors_of
from app.probes.sniff import SNIFF, sniff
from app.probes.weights import WeightIndex, read_index

SINGLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
_LIMIT = 64 * 1024 * 1024  # bytes of a program; 2,000 tensors take 300 kB
_DIRECTORY = 32 * 1024 * 1024  # bytes of an archive's own list; 2,000 records take 200 kB
_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch.serialization.MAGIC_NUMBER, pickled
_BEFORE = 3  # magic number, version of the protocol, sizes of C's types
_COUNT = 8  # bytes before each storage of the older format: its number of elements
_BROKEN = (
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, zlib.error, EOFError),
    *(OverflowError, MemoryError),
)


def read_pickles(
    folder: Path, names: tuple[str, ...]
) -> tuple[PickledWeights, tuple[TensorHeader, ...]]:
    """The pickles that a loader would open, and their tensors."""
    if SINGLE in names:
        index = WeightIndex((SINGLE,))
    elif INDEX in names:
        index = read_index(folder / INDEX, ".bin")
    else:
        return PickledWeights(), ()
    read = [read_file(folder, name) for name in index.files]
    errnos = {file.name: number for file, _, number in read if number}
    if index.errno:
        errnos[INDEX] = index.errno
    files = tuple(file for file, _, _ in read)
    tensors = tuple(header for _, found, _ in read for header in found)
    return PickledWeights(files, index.table, index.problem, errnos), tensors


def read_file(folder: Path, name: str) -> tuple[PickledFile, list[TensorHeader], int | None]:
    """One pickle: what it is, its tensors, and the system's number when it could not be read."""
    size, problem, number = 0, "", None
    try:
        with opened(folder / name) as raw:
            size = os.fstat(raw.fileno()).st_size
            machine, found = _read_open(raw, size, name)
            return _judged(name, size, machine, found)
    except FileNotFoundError:
        problem = "missing"
    except PickleError as error:
        problem = str(error)
    except OSError as error:
        problem, number = error.strerror or str(error), error.errno
    except _BROKEN as error:
        text = " ".join(str(error).split()) or type(error).__name__
        problem = f"a broken archive: {one_line(text, 120)}"
    return PickledFile(name, size, problem), [], number


def _read_open(raw: BinaryIO, size: int, name: str) -> tuple[Machine, list[TensorHeader]]:
    """By its first bytes."""
    head = raw.read(SNIFF)
    raw.seek(0)
    if head.startswith(b"PK\x03\x04"):
        return _archive(raw, name)
    other = sniff(head) if size else "empty"
    if other:
        raise PickleError(other)
    return _older(raw, size, name)


def _judged(
    name: str, size: int, machine: Machine, found: list[TensorHeader]
) -> tuple[PickledFile, list[TensorHeader], int | None]:
    """Code comes first: a pickle that torch refuses for its protocol may hold some too."""
    code = code_in(machine.names)
    if code or not machine.foreign:
        return PickledFile(name, size, code=code, n_tensors=len(found)), found, None
    problem = f"its pickle uses {next(iter(machine.foreign))}, which torch refuses in weights"
    return PickledFile(name, size, problem), [], None


def _archive(raw: BinaryIO, name: str) -> tuple[Machine, list[TensorHeader]]:
    """torch's zip archive."""
    counted = _Counted(raw, _DIRECTORY)
    with zipfile.ZipFile(cast("BinaryIO", counted)) as archive:
        infos = {info.filename: info for info in archive.infolist()}
        programs = [each for each in infos if each.endswith("/data.pkl") or each == "data.pkl"]
        if any("/code/" in each or each.endswith("constants.pkl") for each in infos):
            raise PickleError("a TorchScript program, not a table of tensors")
        if len(programs) != 1:
            raise PickleError("a zip archive without torch's data.pkl")
        program = infos[programs[0]]
        if program.compress_type or program.file_size > _LIMIT:
            raise PickleError("its data.pkl is compressed or larger than any table of tensors")
        counted.allow(_LIMIT)
        text = archive.read(program)
    prefix = programs[0].removesuffix("data.pkl") + "data/"
    sizes = {
        each.removeprefix(prefix): info.file_size
        for each, info in infos.items()
        if each.startswith(prefix)
    }
    value, machine = read_pickle(io.BytesIO(text))
    if code_in(machine.names):
        return machine, []
    return machine, tensors_of(value, Storages(sizes.get), name)


def _older(raw: BinaryIO, size: int, name: str) -> tuple[Machine, list[TensorHeader]]:
    """The format before archives: its storages follow the program, each behind its length."""
    magic = raw.read(len(_MAGIC))
    raw.seek(0)
    counted = cast("BinaryIO", _Counted(raw))
    if magic != _MAGIC:
        return _bare(counted), []
    names: dict[str, None] = {}
    for _ in range(_BEFORE):
        _, machine = read_pickle(counted)
        names |= machine.names
    value, machine = read_pickle(counted)
    names |= machine.names
    keys, more = read_pickle(counted)
    machine.names |= {**names, **more.names}
    if code_in(machine.names):
        return machine, []
    storages = Storages()
    found = tensors_of(value, storages, name)
    wanted = sum(_COUNT + n for n in storages.n_bytes.values())
    held = size - raw.tell()
    if not isinstance(keys, list) or held < wanted:
        raise PickleError(f"cut off: {held} bytes of tensor data, its program says {wanted}")
    return machine, found


def _bare(file: BinaryIO) -> Machine:
    """A pickle that is not torch's: whoever opens it runs what it names, so that is told first."""
    try:
        _, machine = read_pickle(file)
    except PickleError:
        machine = Machine()
    if not code_in(machine.names):
        raise PickleError("neither torch's archive nor its older format")
    return machine


class _Counted(io.RawIOBase):
    """A file of which only so much may be read: a directory or a text may claim any size."""

    def __init__(self, raw: BinaryIO, limit: int = _LIMIT) -> None:
        self._raw, self._left = raw, limit

    def allow(self, more: int) -> None:
        """Let so many bytes more be read."""
        self._left += more

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes.

        Raises:
            ValueError: more was read than any real file needs.
        """
        return self._taken(self._raw.read, -1 if size is None else size)

    def readline(self, size: int | None = -1) -> bytes:
        """Up to the end of a line."""
        return self._taken(self._raw.readline, -1 if size is None else size)

    def _taken(self, read: Callable[[int], bytes], size: int) -> bytes:
        found = read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(found)
        if not self._left:
            raise ValueError("more to read than a table of tensors needs")
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of any file."""
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """As of any file."""
        return self._raw.tell()

    def seekable(self) -> bool:
        """It is a regular file."""
        return True

    def readable(self) -> bool:
        """It is open for reading."""
        return True
