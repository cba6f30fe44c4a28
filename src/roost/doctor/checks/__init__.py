"""The checks: one module each, a pure function from facts to findings."""

from __future__ import annotations

from collections.abc import Callable

from roost.doctor.checks import (
    acs,
    allocator,
    card_health,
    cpu,
    disk,
    driver,
    gpus,
    iommu,
    memory,
    nccl,
    numa,
    parts,
    peers,
    shared_memory,
    versions,
)
from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Report

CHECKS: dict[str, Callable[[Facts], list[Finding]]] = {
    module.NAME: module.check
    for module in (
        gpus,
        card_health,
        driver,
        versions,
        peers,
        iommu,
        acs,
        nccl,
        numa,
        allocator,
        cpu,
        memory,
        shared_memory,
        disk,
        parts,
    )
}
"""By name, in the order of the report."""


def examine(facts: Facts) -> Report:
    """Run all checks."""
    return Report([finding for check in CHECKS.values() for finding in check(facts)])
