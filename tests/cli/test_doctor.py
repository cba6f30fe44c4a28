from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from roost.cli import main
from roost.cli.doctor import show
from roost.doctor import collect
from roost.doctor.checks import CHECKS, examine
from roost.doctor.facts import Answer, Disk, Facts, Package
from roost.doctor.findings import Finding, Level
from support.machines import captured, hgx, laptop, switch_pair

ROOT = Path(__file__).parents[2]
PARTS = {"math-verify": Package("0.9.0"), "reasoning-gym": Package("0.1.25")}
"""Those that come with Roost."""


def printed(facts: Facts, width: int = 100) -> str:
    out = StringIO()
    show(examine(facts), Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("facts", [hgx(), switch_pair(), laptop()])
def test_healthy_machines_are_well_in_every_check(
    facts: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = replace(facts, packages={**facts.packages, **PARTS})
    monkeypatch.setattr(collect, "collect", lambda here: whole)
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["healthy"], report["faults"], report["warnings"]) == (True, 0, 0)
    assert {finding["check"] for finding in report["findings"]} == CHECKS.keys()
    assert "all well" in printed(whole)


def test_warnings_alone_are_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Disk("/dev/shm", "shared memory", 2**26, 2**26)
    whole = replace(laptop(), shm=small, packages={**laptop().packages, **PARTS})
    monkeypatch.setattr(collect, "collect", lambda here: whole)
    assert main(["doctor"]) == 0
    assert "0 faults, 1 warning" in printed(whole)


def test_a_fault_is_printed_with_what_it_means_and_what_to_do() -> None:
    acs = replace(switch_pair(), lspci=Answer("lspci", captured("switch_pair", "lspci-acs")))
    text = " ".join(printed(acs).split())
    assert "fault acs PCIe switches above the cards redirect copies" in text
    assert "hang NCCL" in text
    assert "-> Switch ACS" in text


def test_nothing_that_a_program_printed_is_taken_for_markup() -> None:
    odd = Answer("torch", problem="ended with exit code 1: [/bold] [Errno 2]")
    assert "[/bold] [Errno 2]" in " ".join(printed(replace(laptop(), torch=odd)).split())


def test_a_warning_without_a_remedy_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="must say what it means and what to do"):
        Finding("disk", Level.WARNING, "it is odd", means="who knows")


def test_the_page_explains_every_check() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    headings = {line.removeprefix("## ").strip() for line in page.splitlines()}
    assert headings >= CHECKS.keys()
