"""What ``roost pilot`` has measured here, kept where plans find it. Imports no torch.

One JSON file for each place, in ``$ROOST_HOME/pilot``, else ``$XDG_CACHE_HOME/roost/pilot``, else
``~/.cache/roost/pilot``. Its fields are those of ``Pilot``; ``format`` is ``FORMAT``, and a file of
another format counts as none, since its figures mean something else.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from roost.config import RunConfig
from roost.planner.model_shape import ModelShape

FORMAT = 2
"""Version of the file; raised when a field changes its meaning."""


@dataclass(frozen=True, slots=True)
class PilotPlace:
    """All that the constants depend on besides the recipe's sizes."""

    device: str
    """The card's name, or the processor's."""
    threads: int
    """Of torch, within an operation."""
    torch: str
    """Its version."""
    model: str
    """Digest of the model's shape."""
    dtype: str
    method: str
    """``full``, or ``lora`` with its rank and targets."""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        shape: ModelShape,
        *,
        device: str,
        threads: int,
        torch: str,
        dtype: str,
    ) -> PilotPlace:
        """The place of a run."""
        lora = config.lora
        method = "full"
        if config.train.method == "lora":
            method = f"lora {lora.rank} {lora.targets}"
        return cls(device, threads, torch, digest(shape), dtype, method)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds of each thing that a step does."""

    prefill_token_s: float
    """Of one prompt token."""
    decode_step_s: float
    """Of one decode step besides its rows."""
    decode_row_s: float
    """Of one row of a decode step."""
    decode_context_s: float
    """Of one token that a row of a decode step looks back at."""
    kept_token_s: float
    """Forward and backward of one token, activations kept."""
    recomputed_token_s: float
    """The same, activations computed again."""
    pack_s: float
    """Of one micro-batch besides its tokens."""
    optimizer_parameter_s: float
    """Optimizer step of one trained parameter."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A mean step of a recipe, as the pilot's steps drew it."""

    tokens: float
    """Completion tokens."""
    longest: float
    """Of the longest completion."""
    computed: float
    """Tokens that the trainer computed: those that move no weight are left out."""
    at_once: int = 0
    """Of the largest micro-batch, the rehearsal's included; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class Pilot:
    """The measurements of one place."""

    place: PilotPlace
    speeds: Speeds
    spread: float
    """Mean relative error of the decoding speeds on what they were fitted to."""
    generate_residual_bytes: int
    """Measured peak of the worst case less the plan's terms; may be negative."""
    train_residual_bytes: int
    """The same of the training phase."""
    workloads: dict[str, Workload] = field(default_factory=dict)
    """By ``recipe_digest``."""


def digest(*parts: object) -> str:
    """Sixteen hex digits of what some values print as."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def recipe_digest(config: RunConfig) -> str:
    """Of what decides how long a recipe's completions are."""
    model, held_out = (config.model.path, config.model.revision), config.eval.prompts
    # Prompts that are held out are not trained on, and rewards and KL say which samples are.
    rewards, seed = (config.rewards.functions, config.loss.beta), config.seed
    return digest(model, config.data, config.rollout, rewards, held_out, seed)


def pilot_folder() -> Path:
    """Where measurements are kept."""
    home = os.environ.get("ROOST_HOME")
    if home:
        return Path(home) / "pilot"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "roost" / "pilot"


def pilot_path(place: PilotPlace) -> Path:
    """The file of a place."""
    return pilot_folder() / f"{digest(place)}.json"


def write_pilot(pilot: Pilot) -> Path:
    """Keep measurements, and of those before them the workloads of other recipes.

    Raises:
        OSError: the folder cannot be written.
    """
    path = pilot_path(pilot.place)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = read_pilot(pilot.place)
    table = {"format": FORMAT, **asdict(pilot)}
    if before is not None:
        kept = {name: asdict(load) for name, load in before.workloads.items()}
        table["workloads"] = kept | table["workloads"]
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    beside.replace(path)
    return path


def read_pilot(place: PilotPlace) -> Pilot | None:
    """What was measured at a place; None where nothing was, or in another format, or damaged: a
    plan can do without."""
    try:
        table = json.loads(pilot_path(place).read_text(encoding="utf-8"))
        if table.pop("format") != FORMAT or PilotPlace(**table.pop("place")) != place:
            return None
        loads = {name: Workload(**load) for name, load in table.pop("workloads").items()}
        speeds = Speeds(**table.pop("speeds"))
        return Pilot(place=place, speeds=speeds, workloads=loads, **table)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
