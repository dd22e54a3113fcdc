"""Reads a model folder without torch and without tensor data: JSON files and safetensors headers.

8 bytes little-endian length N, N bytes of JSON header, then the data without gaps. Every byte here
may be hostile: reads are bounded by the header and the small tensors beside packed weights, nothing
raises. A disk that fails is told apart from content that is wrong, by the system's number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from app.facts.checkpoint import CheckpointFacts, QuantData, ShardFacts, TensorHeader
from app.probes.files import Source, open_file
from app.probes.headers import HeaderError, parse_header
from app.probes.model_types import read_families
from app.probes.packing import ShortReadError, read_quant_data
from app.probes.pickles import read_pickles
from app.probes.sniff import SNIFF, sniff_weights
from app.probes.tokens import read_small_files
from app.probes.weights import ADAPTER, CONFIG, GENERATION, choose_weights

_MAX_HEADER = 100_000_000  # bytes, safetensors' own MAX_HEADER_SIZE
_LENGTH = 8  # bytes of the length field
_WEIGHTS = (".safetensors",)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SNAPSHOTS = "snapshots"  # of a repository's folder in the hub's cache, one a revision
_MOST_FOLDERS = 100  # looked into, where the folder itself is no model


def read_checkpoint(folder: Path) -> CheckpointFacts:
    """Everything about the folder that needs no tensor data."""
    try:
        names = tuple(sorted(path.name for path in folder.iterdir()))
    except OSError as error:
        return _unlisted(folder, error)
    choice = choose_weights(folder)
    quant = QuantData()
    read = [read_shard(folder, name, quant) for name in choice.files]
    lonely = not choice.files and not choice.index_problem
    pickled, in_pickles = read_pickles(folder, names if lonely else ())
    others = tuple(name for name in names if name not in choice.files)
    small = read_small_files(folder, others, choice.config.data)
    base = small.objects.get(ADAPTER, {}).get("base_model_name_or_path")
    errnos = {CONFIG: choice.config.errno, "the index": choice.index_errno}
    errnos |= {shard.name: number for shard, _, number in read}
    errnos |= {**pickled.errnos, **small.errnos}
    return CheckpointFacts(
        folder=folder,
        config=choice.config.data,
        config_problem=choice.config.problem,
        index=choice.index,
        index_problem=choice.index_problem,
        shards=tuple(shard for shard, _, _ in read),
        tensors=(*(header for _, found, _ in read for header in found), *in_pickles),
        other_files=tuple(n for n in others if not n.endswith((*_WEIGHTS, *_PICKLES))),
        spare_weights=tuple(n for n in others if n.endswith(_WEIGHTS)),
        pickles=tuple(n for n in others if n.endswith(_PICKLES)),
        pickled=pickled,
        unused_index=choice.unused_index,
        broken_files=small.broken,
        broken_templates=small.broken_templates,
        errnos={name: number for name, number in errnos.items() if number},
        quant=quant,
        tokens=small.tokens,
        families=None if choice.config.problem else read_families(choice.config.data),
        generation=small.objects.get(GENERATION, {}),
        nested=tuple(_nested(folder, names)) if choice.config.problem else (),
        adapter_base=base if isinstance(base, str) else "",
        uid=os.getuid(),
    )


def _unlisted(folder: Path, error: OSError) -> CheckpointFacts:
    """Nothing is known of a folder that cannot be listed, so nothing is called absent."""
    why = error.strerror or str(error)
    unread = dict.fromkeys((CONFIG, "the index", "the folder"), error.errno or 0)
    return CheckpointFacts(
        folder,
        config_problem=why,
        index_problem=f"the folder cannot be listed: {why}",
        broken_files={"the folder": why},
        errnos=unread,
        uid=os.getuid(),
    )


def _nested(folder: Path, names: tuple[str, ...]) -> Iterator[str]:
    """Folders one level deeper that hold a configuration: the model may be there."""
    looked = names[:_MOST_FOLDERS]
    if _SNAPSHOTS in names:
        try:
            revisions = sorted(path.name for path in (folder / _SNAPSHOTS).iterdir())
        except OSError:  # then nothing is known of them
            revisions = []
        looked = (*looked, *(f"{_SNAPSHOTS}/{name}" for name in revisions[:_MOST_FOLDERS]))
    for name in looked:
        try:
            held = (folder / name / CONFIG).is_file()
        except OSError:  # a folder that this uid may not enter, such as a disk's lost+found
            held = False
        if held:
            yield name


def read_headers(folder: Path) -> CheckpointFacts:
    """Configuration and tensors alone: what the engine asks of a folder that has been judged."""
    choice = choose_weights(folder)
    quant = QuantData()
    read = [read_shard(folder, name, quant) for name in choice.files]
    names = tuple(path.name for path in folder.iterdir()) if not choice.files else ()
    _, pickled = read_pickles(folder, names)
    return CheckpointFacts(
        folder=folder,
        config=choice.config.data,
        index=choice.index,
        shards=tuple(shard for shard, _, _ in read),
        tensors=(*(header for _, tensors, _ in read for header in tensors), *pickled),
        quant=quant,
    )


def read_shard(
    folder: Path, name: str, quant: QuantData | None = None
) -> tuple[ShardFacts, list[TensorHeader], int | None]:
    """One weight file: facts, tensors, and the system's number when it could not be read.

    What it holds of quantisation goes into `quant`.
    """
    size = 0
    try:
        with open_file(folder / name) as file:
            size = file.size
            tensors = read_tensors(file, name, quant)
    except FileNotFoundError:
        return ShardFacts(name, 0, "missing"), [], None
    except HeaderError as error:
        return ShardFacts(name, size, str(error)), [], None
    except OSError as error:
        return ShardFacts(name, size, error.strerror or str(error)), [], error.errno
    except ValueError as error:  # a name that no file can have
        return ShardFacts(name, size, str(error)), [], None
    return ShardFacts(name, size), tensors, None


def read_tensors(source: Source, name: str, quant: QuantData | None = None) -> list[TensorHeader]:
    """The tensors of an open weight file, in file order.

    Raises:
        HeaderError: it is none, or its header does not fit it.
        OSError: it cannot be read.
    """
    raw = _raw_header(source)
    start = _LENGTH + len(raw)
    tensors = parse_header(raw, source.size - start, name, start)
    if quant is not None:
        try:
            read_quant_data(source, tensors, quant)
        except ShortReadError:
            raise HeaderError("cut off while it was read") from None
    return tensors


def _raw_header(source: Source) -> bytes:
    """The bytes of the JSON header."""
    if source.size == 0:
        raise HeaderError("empty")
    head = source.read(SNIFF, 0)
    if len(head) < min(SNIFF, source.size):
        raise HeaderError("cut off while it was read")
    length = int.from_bytes(head[:_LENGTH], "little")
    # A brace behind a fair length: the first bytes are a number, whatever else they look like.
    meant = head[_LENGTH : _LENGTH + 1] == b"{" and length <= _MAX_HEADER
    other = "" if meant else sniff_weights(head)
    if other:
        raise HeaderError(other)
    if source.size < _LENGTH:
        raise HeaderError(f"only {source.size} bytes, less than the length field")
    if length > _MAX_HEADER:
        raise HeaderError(f"not a safetensors file: it claims a header of {length} bytes")
    if length > source.size - _LENGTH:
        raise HeaderError(f"cut off inside the header: {source.size} bytes, header of {length}")
    raw = source.read(length, _LENGTH)
    if len(raw) != length:
        raise HeaderError("cut off inside the header while it was read")
    return raw
