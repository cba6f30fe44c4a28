"""The registry of cards: names, visible memory, files of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from roost.errors import ConfigError
from roost.planner.cards import registry

GOOD = '[cards."Toy 1"]\nmemory_listed_gb = 10\nbandwidth_gbps = 100\ntdp_w = 50\n'


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("h100", "H100 SXM"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx-pro-6000", "RTX PRO 6000 Blackwell Server"),
        ("Tesla T4", "T4"),
        ("amd instinct mi300x", "MI300X"),
    ],
)
def test_a_card_is_found_however_it_is_written(asked: str, name: str) -> None:
    assert registry().card(asked).name == name


def test_visible_and_listed_memory() -> None:
    # 79.2 GiB in startup logs, 80 GB on the box; 23.55 GiB and 24 GB.
    for name, gib, listed in (("H100", 79.2, 80e9), ("RTX 4090", 23.55, 24e9)):
        card = registry().card(name)
        assert card.visible_bytes == pytest.approx(gib * 2**30, rel=1e-3)
        assert card.listed_bytes == listed


def test_a_card_without_a_log_is_taken_to_show_a_little_less_than_listed() -> None:
    card = registry().card("L4")
    assert card.memory_visible_bytes is None
    assert card.visible_bytes == 23_520_000_000  # 0.98 of 24 GB
    assert "no log of this card" in card.source_of("memory_visible_bytes")


def test_an_unverified_figure_says_so() -> None:
    card = registry().card("RTX 4090")
    assert card.source_of("bf16_tflops").startswith("unverified: ")
    assert not card.source_of("memory_visible_bytes").startswith("unverified")


def test_a_file_adds_a_card_and_replaces_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD + GOOD.replace("Toy 1", "H100 SXM"))
    mine = registry().with_file(file)
    assert mine.card("toy-1").source == "given in " + str(file)
    assert mine.card("H100 SXM").memory_listed_gb == 10
    assert registry().card("H100 SXM").memory_listed_gb == 80


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cards", "is not TOML"),
        ("", "has no card"),
        (GOOD.replace("tdp_w = 50", ""), "'Toy 1' needs tdp_w"),
        (GOOD.replace("tdp_w", "tpd_w"), "unknown field 'tpd_w'. Did you mean 'tdp_w'"),
        (GOOD.replace("= 10\n", "= -1\n"), "memory_listed_gb = -1 must be a number above 0"),
        (GOOD.replace("= 10\n", "= true\n"), "memory_listed_gb = True must be a number above 0"),
        (GOOD.replace("= 10\n", '= "10"\n'), "memory_listed_gb = '10' must be a number above 0"),
    ],
)
def test_a_malformed_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        registry().with_file(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read '.*nowhere.toml'"):
        registry().with_file(tmp_path / "nowhere.toml")


def test_an_unknown_processor_gets_a_suggestion() -> None:
    assert registry().processor("epyc-9555").tdp_w == 360
    with pytest.raises(ConfigError, match="Did you mean 'EPYC 9555'"):
        registry().processor("EPYC 9556")
