"""`roost check` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from roost.gpu_check.results import CheckFailed
from roost.self_check import laws
from roost.self_check.checks import CHECKS
from support.commands import run, succeed
from support.desk import Desk

NAMES = [check.name for check in CHECKS]
ROOT = Path(__file__).parents[2]


def test_a_verdict_a_line(desk: Desk) -> None:
    lines = succeed("check", desk.recipe({})).output.splitlines()
    assert [line.split()[1] for line in lines] == NAMES
    assert [line.split()[0] for line in lines] == ["ok"] * 3 + ["skipped"] * 11
    assert desk.files() == {"recipe.toml"}


def test_in_json_of_a_run_with_a_field_set(desk: Desk) -> None:
    root = desk.run()
    before = desk.files()
    found = succeed("check", root, "--set", "rollout.temperature=0.5", "--json").json
    assert [set(one) for one in found] == [{"name", "verdict", "detail"}] * len(NAMES)
    assert [one["name"] for one in found] == NAMES
    assert {one["verdict"] for one in found} == {"ok", "skipped"}
    assert desk.files() == before


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_one_that_fails_is_code_1(
    options: list[str], desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(*_: object) -> str:
        raise CheckFailed("9 nats a token apart")

    monkeypatch.setattr(laws, "compare", apart)
    said = run("check", desk.recipe({}), *options)
    assert said.code == 1
    if options:
        assert said.json[0]["verdict"] == "failed"
    else:
        first = said.output.splitlines()[0]
        assert " ".join(first.split()) == "FAILED agreement 9 nats a token apart"


def test_what_cannot_be_checked_is_code_2(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file" in run("check", "odd.toml").error
    assert "not a run folder" in run("check", ".").error
    assert "no such field" in run("check", desk.recipe({}), "--set", "rollout.engin=vllm").error
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = run("check", desk.recipe({}))
    assert (said.code, said.output) == (2, "")
    assert "a check takes one" in said.error


def test_the_page_of_vllm_names_every_check() -> None:
    page = (ROOT / "docs" / "vllm.md").read_text()
    assert all(f"`{name}`" in page for name in NAMES)
