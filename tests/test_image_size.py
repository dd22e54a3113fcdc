"""Facts about an image's measure: what a push sends, whose it is, when a budget is wrong."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from collections.abc import Mapping

import pytest

from scripts.image_layers import Census, Part, read_saved
from scripts.image_size import BUDGET, Size, over_budget, told

SITE = "opt/venv/lib/python3.12/site-packages"
GOALS = {"h100": 3_300_000_000, "v100": 4_200_000_000}


def tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return out.getvalue()


def saved(layers: Mapping[str, bytes]) -> io.BytesIO:
    """As `docker save` writes it; the manifest comes last."""
    manifest = json.dumps([{"Config": "x.json", "Layers": list(layers)}]).encode()
    return io.BytesIO(tar({**layers, "x.json": b"{}", "manifest.json": manifest}))


def noise(size: int) -> bytes:
    """What no compressor makes smaller."""
    return random.Random(size).randbytes(size)  # noqa: S311 - no secret


def half(size: int) -> bytes:
    """What compresses to about a half: random digits in hexadecimal."""
    return noise(size // 2).hex().encode()


def words(size: int) -> bytes:
    """What a better level makes smaller than the fastest does."""
    some = [noise(n).hex().encode() for n in range(3, 40)]
    chosen = random.Random(size).choices(some, k=size // 10)  # noqa: S311 - no secret
    return b" ".join(chosen)[:size]


LARGE = tar({f"{SITE}/a/{n}.bin": half(3_000_000) + noise(100_000) for n in range(5)})


def test_a_layer_is_as_large_as_one_gzip_stream_makes_it() -> None:
    sizes = read_saved(saved({"1/layer.tar": LARGE}), Census(exact=True))
    assert sizes[0] == pytest.approx(len(gzip.compress(LARGE, 6)), rel=0.001)


def test_the_estimate_comes_close_to_it() -> None:
    """Two dozen chunks, of which some are measured and the others are scaled."""
    mixed = {str(n): words(1_500_000) + noise(1_000_000 + n) + bytes(500_000) for n in range(30)}
    layer = tar({**mixed, "last": words(3_000_000)})
    exact = read_saved(saved({"1/layer.tar": layer}), Census(exact=True))
    estimate = read_saved(saved({"1/layer.tar": layer}), Census())
    assert estimate != exact
    assert estimate[0] == pytest.approx(exact[0], rel=0.01)


def test_layers_come_in_the_images_order() -> None:
    layers = {"9/layer.tar": tar({"a": noise(50_000)}), "1/layer.tar": tar({"b": noise(5_000)})}
    large, small = read_saved(saved(layers), Census())
    assert large > 50_000 > small > 5_000


def test_engines_that_keep_layers_compressed_are_read_too() -> None:
    plain = read_saved(saved({"blobs/sha256/1": LARGE}), Census())
    packed = read_saved(saved({"blobs/sha256/1": gzip.compress(LARGE, 6)}), Census())
    assert packed == plain


def test_files_belong_to_distributions_and_packages() -> None:
    record = "nvidia/cublas/libcublas.so,sha256=x,1\n../../../bin/tool,,\nblas/__init__.py,,\n"
    files = {
        f"{SITE}/nvidia_cublas-13.1-py3.dist-info/RECORD".replace("-py3", ""): record.encode(),
        f"{SITE}/nvidia/cublas/libcublas.so": noise(40_000),
        f"{SITE}/blas/__pycache__/__init__.cpython-312.pyc": noise(10_000),
        "opt/venv/bin/tool": noise(3_000),
        f"{SITE}/stray/data": noise(20_000),
        "var/lib/dpkg/info/libc6:amd64.list": b"/.\n/lib\n/lib/x86/libc.so.6\n",
        "./usr/lib/x86/libc.so.6": noise(7_000),
        "srv/data/file": noise(1_000),
    }
    census = Census()
    read_saved(saved({"1/layer.tar": tar(files)}), census)
    parts = {part.name: part.disk_bytes for part in census.parts()}
    assert parts["nvidia_cublas"] == 53_000
    assert parts["stray"] == 20_000
    assert parts["libc6"] == 7_000
    assert parts["/srv/data"] == 1_000


def test_parts_add_up_to_the_layers() -> None:
    census = Census()
    total = sum(read_saved(saved({"1/layer.tar": LARGE, "2/layer.tar": tar({"b": b"x"})}), census))
    assert sum(part.compressed_bytes for part in census.parts()) == pytest.approx(total, rel=0.01)


def size(compressed: int, disk: int = 1000) -> Size:
    base, base_on_disk = 5_000_000, 200
    of_both = (disk + base_on_disk, compressed + base, base, base_on_disk)
    return Size("image:tag", *of_both, [Part("torch", 7, 9)])


def test_an_image_over_its_budget_is_named_with_both_figures() -> None:
    (wrong,) = over_budget(size(3_000_000_001), {"own_compressed_bytes": 3_000_000_000})
    for word in ("image:tag", "over its budget", "3000000001", "3000000000", "3010000000"):
        assert word in wrong


def test_a_budget_that_lies_too_far_above_has_to_shrink() -> None:
    limits = {"own_compressed_bytes": 3_000_000_000, "own_disk_bytes": 1000}
    assert over_budget(size(2_910_000_000), limits) == []
    (wrong,) = over_budget(size(2_899_000_000), limits)
    assert "Lower it to 2900000000" in wrong


def test_what_is_proposed_is_accepted() -> None:
    for found in (1_234_567_890, 2_910_000_000, 3_999_999_999):
        (wrong,) = over_budget(size(found), {"own_compressed_bytes": 5_000_000_000})
        assert over_budget(size(found), {"own_compressed_bytes": int(wrong.split()[-1])}) == []


def test_the_budgets_keep_the_goals() -> None:
    budget = json.loads(BUDGET.read_text(encoding="utf-8"))
    assert budget.keys() == GOALS.keys()
    for name, limits in budget.items():
        assert limits.keys() == {"own_compressed_bytes", "own_disk_bytes"}
        assert limits["own_compressed_bytes"] <= GOALS[name]


def test_people_read_gigabytes_and_the_largest_parts() -> None:
    text = told(size(3_210_000_000, 7_000_000_000))
    assert "3.21 GB compressed" in text
    assert "7.00 GB on disk" in text
    assert "torch" in text
