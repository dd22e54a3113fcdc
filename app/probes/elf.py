"""Reads what a shared library needs and offers, by bounded reads of its ELF structures.

No loader runs: a library's constructors can hang, and mapping torch takes a second. Numbers are
those of the ELF specification and of the GNU symbol versioning in glibc's <elf.h>. Only 64-bit
little-endian files are read: x86-64 and aarch64 are.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_NEED = struct.Struct("<HHIII")
_NEED_VERSION = struct.Struct("<IHHII")
_OFFER = struct.Struct("<HHHHIII")
_LOAD, _DYNAMIC_SEGMENT = 1, 2
_NEEDED, _STRTAB, _RPATH, _RUNPATH = 1, 5, 15, 29
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_WEAK = 2  # VER_FLG_WEAK: the loader only warns
_LONGEST_TEXT = 4096
_MOST = 4096  # of anything that is counted: real libraries have some hundreds
_LARGEST_TABLE = 1024 * 1024


class ElfError(Exception):
    """The file is no library that could be read; the text says why, in a few words."""


class OtherClassError(ElfError):
    """An ELF file of 32 bits or of the other byte order, which the loader passes over."""


@dataclass(frozen=True, slots=True)
class Library:
    """What the loader reads of a library: names of others, the versions of their symbols."""

    machine: int
    needed: tuple[str, ...] = ()
    search: tuple[str, ...] = ()  # RPATH or RUNPATH, `$ORIGIN` as written
    needs: dict[str, tuple[str, ...]] = field(default_factory=dict)  # library -> symbol versions
    offers: tuple[str, ...] = ()


def _header(head: bytes) -> tuple[int, ...]:
    """The fields of the file header, without those that name the format."""
    if not head:
        raise ElfError("the file is empty")
    if len(head) < _HEADER.size or head[:4] != b"\x7fELF":
        raise ElfError("this is no ELF file")
    if head[4:6] != b"\x02\x01":
        raise OtherClassError("this is no 64-bit ELF file")
    return _HEADER.unpack(head)[1:]


class ElfFile:
    """An open ELF file. Every structure outside of the file, or absurdly large, is an ElfError."""

    def __init__(self, path: Path) -> None:
        """Open it and read its header.

        Raises:
            OSError: it cannot be opened or read.
            ElfError: it is no 64-bit little-endian ELF file.
        """
        # A FIFO must not wait for a writer.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._size = os.fstat(self._file).st_size
            fields = _header(os.pread(self._file, _HEADER.size, 0))
        except BaseException:
            os.close(self._file)
            raise
        self.machine = fields[1]
        self._segments_at, self._sections_at = fields[4], fields[5]
        self._n_segments, self._n_sections, self._names_section = fields[9], fields[11], fields[12]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the file. Raises ElfError where it ends before them."""
        if offset < 0 or size < 0 or offset + size > self._size:
            raise ElfError("the file is cut off")
        found = os.pread(self._file, size, offset)
        if len(found) < size:
            raise ElfError("the file is cut off")
        return found

    def sections(self) -> dict[str, tuple[int, int]]:
        """Name -> offset and size; empty for a file that has been stripped of them."""
        size = self._n_sections * _SECTION.size
        if not self._sections_at or self._names_section >= self._n_sections:
            return {}
        rows = list(_SECTION.iter_unpack(self.read(self._sections_at, size)))
        names_at, names_size = rows[self._names_section][4:6]
        names = self.read(names_at, min(names_size, _LARGEST_TABLE))
        return {
            names[row[0] : names.find(b"\0", row[0])].decode(errors="replace"): (row[4], row[5])
            for row in rows
        }

    def is_whole(self) -> bool:
        """Whether all that the loader maps lies in the file: a cut one dies of SIGBUS.

        Raises ElfError where the table of those parts is cut off itself.
        """
        ends = [row[2] + row[5] for row in self._segments() if row[0] == _LOAD]
        return bool(ends) and max(ends) <= self._size

    def _segments(self) -> list[tuple[int, ...]]:
        size = self._n_segments * _SEGMENT.size
        return list(_SEGMENT.iter_unpack(self.read(self._segments_at, size)))

    def library(self) -> Library:
        """Read the dynamic section. Raises ElfError for a file without one."""
        rows = self._segments()
        loads = [(row[3], row[2], row[5]) for row in rows if row[0] == _LOAD]
        dynamic = next(((row[2], row[5]) for row in rows if row[0] == _DYNAMIC_SEGMENT), None)
        if dynamic is None:
            raise ElfError("this is no shared library")
        tags: dict[int, list[int]] = {}
        size = min(dynamic[1], _MOST * _DYNAMIC.size) // _DYNAMIC.size * _DYNAMIC.size
        for tag, value in _DYNAMIC.iter_unpack(self.read(dynamic[0], size)):
            if tag == 0:
                break
            tags.setdefault(tag, []).append(value)
        return _Dynamic(self, loads, tags).library()


@dataclass(frozen=True, slots=True)
class _Dynamic:
    """The dynamic section: tags with addresses, and where in the file an address lies."""

    file: ElfFile
    loads: list[tuple[int, int, int]]  # address, offset, size in the file
    tags: dict[int, list[int]]

    def library(self) -> Library:
        search = [
            folder
            for tag in (_RUNPATH, _RPATH)
            for value in self.tags.get(tag, ())
            for folder in self._text(value).split(":")
            if folder
        ]
        return Library(
            self.file.machine,
            tuple(self._text(value) for value in self.tags.get(_NEEDED, ())),
            tuple(search),
            dict(self._needs()),
            tuple(self._offers()),
        )

    def _offset(self, address: int) -> int:
        for start, offset, size in self.loads:
            if start <= address < start + size:
                return offset + address - start
        raise ElfError("an address lies in no part of the file")

    def _text(self, index: int) -> str:
        """A string of the dynamic string table."""
        start = self._offset(self.tags.get(_STRTAB, [0])[0]) + index
        text = b""
        while b"\0" not in text and len(text) < _LONGEST_TEXT:
            try:
                text += self.file.read(start + len(text), 64)
            except ElfError:  # near the end of the file: byte by byte
                text += self.file.read(start + len(text), 1)
        return text.partition(b"\0")[0].decode(errors="replace")

    def _walk(
        self, tag: int, count_tag: int, row: struct.Struct
    ) -> Iterator[tuple[int, list[int]]]:
        """The linked records of a version section, each with its place."""
        if tag not in self.tags:
            return
        place = self._offset(self.tags[tag][0])
        for _ in range(min(self.tags.get(count_tag, [0])[0], _MOST)):
            fields = list(row.unpack(self.file.read(place, row.size)))
            yield place, fields
            if not fields[-1]:
                return
            place += fields[-1]

    def _needs(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for place, (_, count, name, first, _) in self._walk(_VERNEED, _VERNEEDNUM, _NEED):
            at, versions = place + first, []
            for _ in range(min(count, _MOST)):
                _, flags, _, text, following = _NEED_VERSION.unpack(
                    self.file.read(at, _NEED_VERSION.size)
                )
                if not flags & _WEAK:
                    versions.append(self._text(text))
                if not following:
                    break
                at += following
            yield self._text(name), tuple(versions)

    def _offers(self) -> Iterator[str]:
        for place, fields in self._walk(_VERDEF, _VERDEFNUM, _OFFER):
            yield self._text(struct.unpack("<I", self.file.read(place + fields[5], 4))[0])


def read_library(path: Path) -> Library:
    """What the loader would read of this file.

    Raises:
        OSError: it cannot be opened or read.
        ElfError: it is no shared library, or a broken one.
    """
    with ElfFile(path) as file:
        return file.library()


def own_machine() -> int | None:
    """The machine that this process runs code of; None where its program cannot be read."""
    for program in ("/proc/self/exe", sys.executable):
        try:
            with ElfFile(Path(program)) as file:
                return file.machine
        except (OSError, ElfError):
            continue
    return None
