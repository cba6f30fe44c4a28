"""The machine itself, by ``roost doctor``."""

from __future__ import annotations

from roost.doctor.checks import examine
from roost.doctor.collect import collect
from roost.doctor.findings import Level
from roost.gpu_check.results import Found, Place, require


def doctor(place: Place) -> Found:
    """No fault; warnings are told."""
    report = examine(collect(place.path))
    faults = [f"{f.check}: {f.what}" for f in report.findings if f.level is Level.FAULT]
    require(not faults, "; ".join(faults))
    warnings = [f.check for f in report.findings if f.level is Level.WARNING]
    told = f"{len(report.findings)} findings, no fault"
    if warnings:
        told += f"; warnings: {', '.join(dict.fromkeys(warnings))}"
    return Found(told, report.as_dict())
