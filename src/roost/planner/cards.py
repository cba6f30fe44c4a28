"""The registry of cards and processors: data that ships with Roost, and files of the user's."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from roost.errors import ConfigError, did_you_mean, nearest

VISIBLE_SHARE = 0.98
"""Of the listed figure, where no log of a card's visible memory was found: the least share that
was seen (L40S, T4)."""


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of GPU."""

    name: str
    memory_listed_gb: float
    """As sold, in 1e9 bytes."""
    bandwidth_gbps: float
    """Device memory, 1e9 bytes a second."""
    tdp_w: float
    source: str
    """Where the figures come from."""
    memory_visible_bytes: int | None = None
    """What torch reports as total memory."""
    bf16_tflops: float | None = None
    """Dense 16-bit arithmetic, 1e12 operations a second."""
    nvlink_gbps: float | None = None
    """One direction, 1e9 bytes a second."""
    nvlink_domain: int = 1
    """Cards that NVLink joins."""
    pcie_gbps: float | None = None
    """One direction, nominal."""
    price: float | None = None
    """Of one card for an hour."""
    notes: str = ""
    aliases: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    """Figures for which no source was seen."""

    @property
    def listed_bytes(self) -> int:
        """The listed figure in bytes."""
        return round(self.memory_listed_gb * 10**9)

    @property
    def visible_bytes(self) -> int:
        """What a process can see of it."""
        return self.memory_visible_bytes or int(VISIBLE_SHARE * self.listed_bytes)

    def source_of(self, field: str) -> str:
        """Where one figure comes from, with a warning where none was seen."""
        if field in self.unverified:
            return f"unverified: {self.source}"
        if field == "memory_visible_bytes" and self.memory_visible_bytes is None:
            return f"{VISIBLE_SHARE} of the listed figure: no log of this card was found"
        return self.source


@dataclass(frozen=True, slots=True)
class Processor:
    """One kind of CPU, for the power of a server."""

    name: str
    tdp_w: float
    source: str


class Registry:
    """Cards and processors by name."""

    def __init__(self, cards: list[Card], processors: list[Processor]) -> None:
        self.cards = {card.name: card for card in cards}
        self.processors = {one.name: one for one in processors}

    def card(self, name: str) -> Card:
        """The card of a name or alias, in any case.

        Raises:
            ConfigError: there is none; the nearest name is suggested.
        """
        keys = {_key(alias): c for c in self.cards.values() for alias in (c.name, *c.aliases)}
        found = keys.get(_key(name))
        if found is None:
            raise ConfigError(
                f"unknown card {name!r}.{_suggest(name, self.cards.values())} "
                f"{len(self.cards)} are known; a TOML file of your own adds one."
            )
        return found

    def processor(self, name: str) -> Processor:
        """The processor of a name.

        Raises:
            ConfigError: there is none.
        """
        for one in self.processors.values():
            if _key(one.name) == _key(name):
                return one
        raise ConfigError(f"unknown processor {name!r}.{did_you_mean(name, self.processors)}")

    def with_file(self, path: Path) -> Registry:
        """This registry and the cards of a TOML file, which replace those of the same name.

        Raises:
            ConfigError: the file cannot be read, or a card in it is malformed.
        """
        try:
            table = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"cards: cannot read {str(path)!r}: {error.strerror}.") from error
        except ValueError as error:
            raise ConfigError(f"cards: {str(path)!r} is not TOML: {error}.") from error
        cards, processors = _parse(table, str(path))
        if not cards and not processors:
            raise ConfigError(
                f'cards: {str(path)!r} has no card: write one as [cards."NAME"] with '
                "memory_listed_gb, bandwidth_gbps and tdp_w."
            )
        return Registry([*self.cards.values(), *cards], [*self.processors.values(), *processors])


@cache
def registry() -> Registry:
    """The cards that ship with Roost."""
    file = resources.files("roost.planner") / "data" / "cards.toml"
    return Registry(*_parse(tomllib.loads(file.read_text("utf-8")), "cards.toml"))


def _parse(table: Mapping[str, Any], file: str) -> tuple[list[Card], list[Processor]]:
    cards = [_card(name, entry, file) for name, entry in table.get("cards", {}).items()]
    processors = [
        Processor(name, float(entry["tdp_w"]), str(entry.get("source", file)))
        for name, entry in table.get("cpus", {}).items()
    ]
    return cards, processors


_NUMBERS = (
    "memory_listed_gb",
    "bandwidth_gbps",
    "tdp_w",
    "memory_visible_bytes",
    "bf16_tflops",
    "nvlink_gbps",
    "nvlink_domain",
    "pcie_gbps",
    "price",
)


def _card(name: str, entry: Mapping[str, Any], file: str) -> Card:
    known = [field.name for field in fields(Card) if field.name != "name"]
    for key, value in entry.items():
        if key not in known:
            raise ConfigError(
                f"{file}: card {name!r}: unknown field {key!r}.{did_you_mean(key, known)}"
            )
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if key in _NUMBERS and not (number and value > 0):
            raise ConfigError(f"{file}: card {name!r}: {key} = {value!r} must be a number above 0.")
    for key in ("memory_listed_gb", "bandwidth_gbps", "tdp_w"):
        if key not in entry:
            raise ConfigError(f"{file}: card {name!r} needs {key}.")
    lists = {key: tuple(entry.get(key, ())) for key in ("aliases", "unverified")}
    return Card(**{"source": f"given in {file}", **entry, **lists, "name": name})


def _key(name: str) -> str:
    short = re.sub(r"\b(nvidia|geforce|amd|tesla|instinct)\b", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", short)


def _suggest(name: str, cards: Any) -> str:
    by_key = {_key(a): c.name for c in cards for a in (c.name, *c.aliases)}
    match = nearest(_key(name), by_key)
    return f" Did you mean {by_key[match]!r}?" if match else ""
