"""What is asked of a plan: the model, the work, the method, the engine, the cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from roost.planner.cards import Card, Processor
from roost.planner.models import KnownModel

Convention = Literal["visible", "listed"]
"""``visible`` plans against what a process sees of a card, with every overhead. ``listed`` takes
the figure on the box and no overhead, as hardware guides do."""
Method = Literal["lora", "qlora", "full"]
Mode = Literal["colocate", "server"]
Strategy = Literal["ddp", "fsdp", "hybrid"]

BYTES: Mapping[str, float] = {"bfloat16": 2.0, "float32": 4.0, "fp8": 1.0}
"""Of one number."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The completions of one step."""

    prompts: int = 16
    generations: int = 8
    prompt_tokens: int = 512
    """Longest prompt."""
    completion_tokens: int = 4096
    """Budget of a completion."""
    mean_completion_tokens: float | None = None
    """Expected length; by default the whole budget."""
    mean_prompt_tokens: float | None = None
    """Expected prompt; by default the longest."""

    @property
    def rollouts(self) -> int:
        """Completions of a step."""
        return self.prompts * self.generations

    @property
    def tokens(self) -> int:
        """Tokens of one prompt with one completion, both at their longest."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def mean_completion(self) -> float:
        """Expected completion."""
        return float(self.mean_completion_tokens or self.completion_tokens)

    @property
    def mean_prompt(self) -> float:
        """Expected prompt."""
        return float(self.mean_prompt_tokens or self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class Training:
    """How the policy is trained."""

    method: Method = "lora"
    lora_rank: int = 16
    lora_targets: str | list[str] = "all-linear"
    dtype: str = "bfloat16"
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    beta: float = 0.0
    """Above 0 there is a reference model."""
    gradient_checkpointing: bool = True
    micro_batch_tokens: int | None = None
    """Tokens of one forward and backward; None is chosen."""
    full_logits: bool = False
    """A trainer that materialises logits; Roost scores in tiles."""
    share_prompts: bool = True
    """Each prompt once for all its completions, as Roost packs them."""
    passes: int = 1
    """Update passes over each batch."""
    logprob_passes: int = 0
    """Forwards for old log-probabilities besides the training forward; Roost needs none."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The rollout engine: vLLM."""

    cache_dtype: str = "bfloat16"
    weight_dtype: str | None = None
    """None is as the model is stored."""
    max_num_seqs: int | None = None
    """None is the rollouts of one engine."""
    max_batched_tokens: int | None = None
    """Of the profile run; None is vLLM's 8192, and 4096 when colocated, as TRL sets it."""
    native_sampler: bool = True
    """PyTorch's sampler, which sorts the vocabulary; FlashInfer's does not, and takes a third."""
    enforce_eager: bool = False
    """Without CUDA graphs."""
    graph_inside: bool = True
    """vLLM counts graphs inside the utilization since 0.21."""
    adapter_sync: bool = False
    """Send the adapter alone, not the merged weights."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The cards at hand."""

    card: Card
    gpus_per_node: int = 1
    nodes: int = 1
    processor: Processor | None = None
    """Two a node; None is chosen by the number of cards."""
    price: float | None = None
    """Of one card for an hour."""
    network_gbps: float = 50.0
    """Between nodes, one direction, 1e9 bytes a second (400 Gbit/s)."""
    pcie_gbps: float | None = None
    """None is the card's."""

    @property
    def gpus(self) -> int:
        """Cards in all."""
        return self.gpus_per_node * self.nodes


@dataclass(frozen=True, slots=True)
class Wishes:
    """The parts of the layout that were asked for; None is chosen by the plan."""

    mode: Mode | None = None
    utilization: float | None = None
    sleep_level: int | None = None
    tensor_parallel: int | None = None
    replicas: int | None = None
    trainer_gpus: int | None = None
    strategy: Strategy | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Who sits on which card."""

    mode: Mode
    trainer_gpus: int
    strategy: Strategy
    rollout_gpus: int
    tensor_parallel: int
    replicas: int
    utilization: float
    sleep_level: int
    """0 keeps the engine's memory while training, 1 moves its weights to the host, 2 drops them."""


@dataclass(frozen=True, slots=True)
class Request:
    """All that a plan starts from."""

    model: KnownModel
    hardware: Hardware
    workload: Workload = field(default_factory=Workload)
    training: Training = field(default_factory=Training)
    engine: Engine = field(default_factory=Engine)
    wishes: Wishes = field(default_factory=Wishes)
    convention: Convention = "visible"
    chosen: tuple[str, ...] = ()
    """Inputs that were left out, so that the plan can say so."""

    @property
    def listed(self) -> bool:
        """Whether the figures on the box are taken."""
        return self.convention == "listed"

    @property
    def trained_tokens(self) -> float:
        """Tokens that the training forward of a step computes, at mean lengths."""
        work = self.workload
        prompts = work.prompts if self.training.share_prompts else work.rollouts
        return prompts * work.mean_prompt + work.rollouts * work.mean_completion

    @property
    def card_bytes(self) -> int:
        """Memory of one card under the convention."""
        card = self.hardware.card
        return card.listed_bytes if self.listed else card.visible_bytes
