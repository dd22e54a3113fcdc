"""Judges of the NF4 proof: packed weights are unpacked and multiplied as they must be."""

from __future__ import annotations

import math

from app import sections_numerics as sections
from app.checks import Check
from app.checks._evidence import unlike
from app.facts.golden import GoldenFacts, Product
from app.facts.words import listed
from app.outcome import Fault, Finding, failed, passed, skipped
from app.plan import Plan

_NEXT = "try the same boot on another node: where it passes, take this one out of service"


def nf4_exact(facts: GoldenFacts, plan: Plan) -> Finding:
    """Every compared value must have the reference's bits."""
    del plan
    if facts.reason:
        return skipped(facts.reason)
    wrong = [each for each in facts.unpacked if each.problem or each.n_different]
    if not wrong:
        n = sum(each.n_compared for each in facts.unpacked)
        return passed(
            f"{n} values of {len(facts.unpacked)} kinds of packed weights are unpacked as by the "
            "reference, bit for bit"
        )
    worst = wrong[0]
    what = f"{worst.n_different} of {worst.n_compared} values differ: {worst.first}"
    return failed(
        f"{worst.by} unpacks packed weights wrongly here: "
        f"{listed(f'{each.name} {list(each.shape)}' for each in wrong)}",
        expected="every value as the reference unpacks it, bit for bit",
        actual=f"{worst.name}: {worst.problem or what}",
        next_step=f"{_NEXT}; where it fails too, the library cannot unpack this shape or block "
        "size on such hardware",
    )


def nf4_products(facts: GoldenFacts, plan: Plan) -> Finding:
    """Finite everywhere, and near to float64."""
    if facts.reason:
        return skipped(facts.reason)
    if not facts.products:
        return skipped("no packed weight belongs to a Linear: its own code multiplies experts")
    broken = [each for each in facts.products if not math.isfinite(each.error)]
    if broken:
        return failed(
            f"4-bit products are not finite here: {_named(broken)}",
            expected="finite products of finite weights and inputs",
            actual=broken[0].problem or "NaN or infinity in the product",
            next_step=_NEXT,
        )
    worst = max(facts.products, key=lambda each: each.error / each.tolerance)
    within = (
        f"relative error {worst.error:.1e} of {worst.tolerance:.1e} allowed ({_named([worst])})"
    )
    if worst.error <= worst.tolerance:
        return passed(f"{len(facts.products)} 4-bit products agree with float64: {within}")
    far = [each for each in facts.products if each.error > each.tolerance]
    return unlike(
        plan,
        f"4-bit products are far from float64: {_named(far)}",
        expected=f"a relative error of at most {worst.tolerance:.1e} (root mean square)",
        actual=within,
        next_step=_NEXT,
    )


def _named(products: list[Product]) -> str:
    named = (f"{each.name}, {each.of} of {each.rows} rows in {each.dtype}" for each in products)
    return listed(named, 2)


def scales_as_in_file(facts: GoldenFacts, plan: Plan) -> Finding:
    """What packed weights are unpacked with came from the file as it is there."""
    del plan
    if facts.reason:
        return skipped(facts.reason)
    if not facts.n_scales:
        return skipped("the checkpoint holds no scales of these weights: they were packed on load")
    if not facts.changed:
        return passed(f"{facts.n_scales} scales and tables are in memory as in the file")
    return failed(
        f"scales of packed weights are not the file's any more: {listed(facts.changed)}",
        expected=f"{facts.n_scales} scales and tables with the file's bytes",
        actual=f"{len(facts.changed)} differ",
        next_step=f"{_NEXT}; where it fails too, check the files with BOOT_VERIFY=sha256",
    )


def section(facts: GoldenFacts) -> sections.Nf4:
    """What was compared, as the report shows it."""
    return sections.Nf4(
        kinds=[
            sections.Nf4Kind(
                name=each.name,
                shape=list(each.shape),
                blocksize=each.blocksize,
                nested_blocksize=each.nested_blocksize,
                dtype=each.dtype,
                by=each.by,
                n_layers=each.n_layers,
                n_compared=each.n_compared,
                n_different=each.n_different,
            )
            for each in facts.unpacked
        ],
        products=[
            sections.Nf4Product(
                name=each.name,
                of=each.of,
                rows=each.rows,
                dtype=each.dtype,
                error=sections.finite(each.error),
                tolerance=each.tolerance,
            )
            for each in facts.products
        ],
        n_scales=facts.n_scales,
        n_changed=len(facts.changed),
        seconds=facts.seconds,
    )


CHECKS: tuple[Check[GoldenFacts], ...] = (
    Check(
        "numerics.nf4_exact",
        Fault.NUMERICS,
        "a reference in numpy, with the QLoRA paper's table and bitsandbytes' order of rounding",
        nf4_exact,
        cause="a device, or a build of the library for it, that unpacks wrongly; on CPUs with "
        "bfloat16 instructions bitsandbytes 0.50.2 does so with rows that are no whole blocks",
        fix="try the same boot on another node; where it fails there too, take a checkpoint of "
        "another block size, or another version of the library",
    ),
    Check(
        "numerics.nf4_products",
        Fault.NUMERICS,
        "float64 products of the unpacked weight; bounds from the roundings of each kernel",
        nf4_products,
        cause="a device that computes wrongly or in another precision, or a kernel that refuses "
        "the shape",
        fix="try the same boot on another node; where it passes, take this one out of service",
    ),
    Check(
        "numerics.scales_as_in_file",
        Fault.NUMERICS,
        "the checkpoint's own bytes",
        scales_as_in_file,
        cause="memory, or the way from disk to device, that changes bytes; files that changed "
        "while they were loaded",
        fix="try the same boot on another node, and check the files with BOOT_VERIFY=sha256",
    ),
)
