"""``roost config`` against the schema: its classes, and the docstrings in its source."""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from roost.config import RewardSpec, RunConfig, schema
from roost.config.loading import build_config, parse_overrides
from support.commands import run, succeed

ITEMS = "rewards.functions[]."
"""A list of tables: its fields are listed too, though ``--set`` cannot reach them."""


def docstrings() -> dict[tuple[str, str], str]:
    """The text below each field, by class and field, as it stands in the source."""
    found = {}
    for node in ast.parse(inspect.getsource(schema)).body:
        if isinstance(node, ast.ClassDef):
            for field, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    name = ast.unparse(field.target)
                    found[node.name, name] = " ".join(ast.literal_eval(text.value).split())
    return found


def leaves(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Dotted name, class and own name of every field that holds a value."""
    for name, field in section.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", section.__name__, name


FIELDS = [*leaves(RunConfig), *leaves(RewardSpec, ITEMS)]


def test_json_has_every_field_with_its_meaning() -> None:
    listed = {row["name"]: row for row in succeed("config", "--json").json}
    texts = docstrings()
    assert set(listed) == {name for name, _, _ in FIELDS}
    for name, owner, own_name in FIELDS:
        assert listed[name]["doc"] == texts[owner, own_name]
        assert listed[name]["type"]


def test_json_has_every_default() -> None:
    defaults: Any = RunConfig().model_dump()
    for row in succeed("config", "--json").json:
        if row["name"].startswith(ITEMS):
            continue
        value: Any = defaults
        for part in row["name"].split("."):
            value = value[part]
        if row["name"] == "rewards.functions":
            value = [spec["function"] for spec in value]
        said = row["default"]
        assert said == "unset" if value is None else tomllib.loads(f"v = {said}")["v"] == value


def test_every_default_can_be_set_as_it_is_shown() -> None:
    rows = succeed("config", "--json").json
    shown = [row for row in rows if row["default"] != "unset" and "[]" not in row["name"]]
    overrides = [f"{row['name']}={row['default']}" for row in shown]
    assert build_config(parse_overrides(overrides)) == RunConfig()


def test_the_listing_has_every_field_in_its_section() -> None:
    """As TOML has it: section headings, and below each its fields."""
    said = succeed("config")
    headings, texts, words = {"": "top level"}, docstrings(), said.words
    headings |= {name.rpartition(".")[0]: f"[{name.rpartition('.')[0]}]" for name, _, _ in FIELDS}
    headings |= {"": "top level", ITEMS.rstrip("."): "[[rewards.functions]]"}
    for name, owner, own_name in FIELDS:
        section = headings[name.rpartition(".")[0]]
        below = words.partition(f"{section} ")[2]
        assert below, section
        field = f"{own_name} = "
        assert field in below
        assert texts[owner, own_name] in below.partition(field)[2]


def test_no_line_is_wider_than_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = succeed("config").output.splitlines()
    assert max(len(line) for line in lines if line.startswith("      ")) <= 60


@pytest.mark.parametrize("name", ["rollout", "rollout.top_p", "seed", "rewards.functions"])
def test_a_section_or_a_field(name: str) -> None:
    rows = succeed("config", name, "--json").json
    expected = [
        dotted for dotted, _, _ in FIELDS if f"{dotted.replace('[]', '')}.".startswith(f"{name}.")
    ]
    assert sorted(row["name"] for row in rows) == sorted(expected)
    assert expected


def test_a_field_of_a_list_is_not_offered_to_set() -> None:
    said = run("train", "--weight", "2")
    assert said.code == 2
    assert "no option --weight" in said.error
    assert "--set" not in said.error
