"""What is measured: the workloads, and the job that is handed to every process alike."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from roost.errors import ConfigError, did_you_mean

LORA_RANK = 16
LORA_ALPHA = 32.0
"""Of every adapter that is measured; Roost's defaults, on all linear layers."""
METHODS = ("full", "lora")


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of a step."""

    prompt_tokens: int
    """About so many tokens a prompt, chat template included."""
    completion_tokens: int
    """Token budget of a completion."""
    prompts: int = 8
    generations: int = 8

    @property
    def completions(self) -> int:
        """Completions of a step."""
        return self.prompts * self.generations


WORKLOADS = {
    "short": Workload(prompt_tokens=45, completion_tokens=128),
    "shared": Workload(prompt_tokens=512, completion_tokens=128),
    "long": Workload(prompt_tokens=128, completion_tokens=512),
}
"""``short`` is a question and an answer, ``shared`` a long prompt with short answers, ``long`` a
question to think about."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does; the same for all but ``name``. Travels as a JSON file."""

    name: str
    """Who: a name of ``roost.bench.rivals``."""
    kind: str
    """``step`` or ``generate``."""
    model: str
    method: str
    prompts: int
    """Prompts of a turn."""
    generations: int
    """Completions of each."""
    prompt_tokens: int
    """Tokens of the longest prompt, chat template included."""
    completion_tokens: int
    """``step``: the budget of a completion; ``generate``: the length of every one."""
    turns: int
    """Steps in all, the uncounted first one included."""
    threads: int
    folder: str
    """For what the process writes."""
    rows: str
    """A JSONL file of prompts in the order in which they are used, ``prompts`` for each turn."""

    @property
    def sequence_tokens(self) -> int:
        """Tokens of the longest prompt with the longest completion."""
        return self.prompt_tokens + self.completion_tokens

    def write(self, path: Path) -> None:
        """Save as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Job:
        """What ``write`` saved."""
        return cls(**json.loads(path.read_text()))


def find_workload(name: str) -> Workload:
    """A workload by name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in WORKLOADS:
        raise ConfigError(f"--workload {name!r}: no such workload.{did_you_mean(name, WORKLOADS)}")
    return WORKLOADS[name]


def check_method(name: str) -> str:
    """A training method by name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in METHODS:
        raise ConfigError(f"--method {name!r}: no such method.{did_you_mean(name, METHODS)}")
    return name
