"""The shape of a model: parameters, adapters and cache per token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear layers of one kind within a decoder layer."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    copies: int = 1
    """How many there are in a layer: one an expert."""
    active: int = 1
    """How many of them a token passes through."""
    adapted: bool = True
    """Whether ``all-linear`` puts an adapter on it. Experts and routers are plain tensors."""

    @property
    def parameters(self) -> int:
        """Weights and biases of all copies."""
        return self.copies * (self.inputs * self.outputs + (self.outputs if self.bias else 0))

    @property
    def active_parameters(self) -> int:
        """Weights that one token is multiplied with."""
        return self.active * self.inputs * self.outputs

    def adapter_parameters(self, rank: int) -> int:
        """LoRA parameters: ``rank * (inputs + outputs)``; 0 where no adapter can be put."""
        return rank * (self.inputs + self.outputs) if self.adapted else 0


@dataclass(frozen=True)
class Block:
    """Decoder layers that are alike."""

    count: int
    linears: tuple[Linear, ...]
    norm_parameters: int
    """Parameters of one layer that are not in ``linears``: norms, sinks."""
    kv_elements: int
    """Numbers that the cache of one layer holds for a token."""
    window: int | None = None
    """Attention reaches this many tokens back, so the cache holds no more; None is all."""

    @cached_property
    def parameters(self) -> int:
        """Parameters of one layer."""
        return sum(linear.parameters for linear in self.linears) + self.norm_parameters

    def cached_tokens(self, tokens: int) -> int:
        """How many tokens of a sequence the cache of one layer holds."""
        return tokens if self.window is None else min(tokens, self.window)


@dataclass(frozen=True)
class ModelShape:
    """What the planner needs of a decoder-only model.

    Sums are kept once computed: a search asks for each of them hundreds of times.
    """

    model_type: str
    hidden: int
    heads: int
    kv_heads: int
    """Heads of keys and values: fewer than ``heads`` in grouped-query attention."""
    head_dim: int
    intermediate: int
    """Width of the feed-forward layer, of one expert where there are experts."""
    vocabulary: int
    tied_embeddings: bool
    blocks: tuple[Block, ...]
    experts: int = 0
    """Experts of a layer; 0 in a dense model."""
    active_experts: int = 0
    """Experts that a token passes through, shared ones included."""
    latent_attention: bool = False
    """Multi-head latent attention: one compressed vector a token, which every tensor-parallel
    rank holds whole."""
    extra_parameters: int = 0
    """Parameters outside the layers besides embedding, head and final norm."""
    max_positions: int = 0
    """Context length; 0 where the config does not say."""

    @cached_property
    def layers(self) -> int:
        """Decoder layers."""
        return sum(block.count for block in self.blocks)

    @cached_property
    def largest_layer_parameters(self) -> int:
        """Parameters of the largest decoder layer."""
        return max(block.parameters for block in self.blocks)

    @cached_property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding."""
        return self.vocabulary * self.hidden

    @cached_property
    def linear_parameters(self) -> int:
        """Parameters of the decoder layers' linear weights: what 4-bit quantisation packs."""
        return sum(b.count * sum(x.parameters for x in b.linears) for b in self.blocks)

    @cached_property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        embeddings = self.embedding_parameters * (1 if self.tied_embeddings else 2)
        layers = sum(block.count * block.parameters for block in self.blocks)
        return embeddings + layers + self.hidden + self.extra_parameters

    @cached_property
    def multiplied_parameters(self) -> int:
        """Weights that one token is multiplied with: active experts only, the head once, and not
        the input embedding, which is a look-up."""
        active = sum(b.count * sum(x.active_parameters for x in b.linears) for b in self.blocks)
        return active + self.embedding_parameters

    @cached_property
    def read_parameters(self) -> int:
        """Weights that a large decode batch reads: all but the input embedding look-up."""
        return self.linear_parameters + self.embedding_parameters

    def adapter_parameters(self, rank: int, targets: str | list[str] = "all-linear") -> int:
        """LoRA parameters of the targeted linear layers. Experts in one tensor are not linear.

        A target that names the layers of one place ("layers.0.mlp.up_proj") counts in all layers:
        the plan is then too high, never too low.
        """
        names = [targets] if isinstance(targets, str) else targets
        endings = {name.rpartition(".")[2] for name in names}
        return sum(
            block.count * linear.adapter_parameters(rank)
            for block in self.blocks
            for linear in block.linears
            if targets == "all-linear" or linear.name in endings
        )

    def kv_elements_per_token(self, tensor_parallel: int = 1) -> int:
        """Numbers that one rank's cache holds for a token: ``2 * layers * kv_heads * head_dim``.

        Args:
            tensor_parallel: Ranks that share the heads. A head is never divided, so more ranks
                than heads hold copies; a latent vector is held whole by each.
        """
        return sum(
            block.count * self._rank_elements(block, tensor_parallel) for block in self.blocks
        )

    def kv_elements(self, tokens: int, tensor_parallel: int = 1) -> int:
        """Numbers that one rank's cache holds for a sequence; sliding windows hold no more than
        their length."""
        return sum(
            block.count * self._rank_elements(block, tensor_parallel) * block.cached_tokens(tokens)
            for block in self.blocks
        )

    def _rank_elements(self, block: Block, tensor_parallel: int) -> int:
        if self.latent_attention:
            return block.kv_elements
        held = max(1, -(-self.kv_heads // tensor_parallel))
        return block.kv_elements * held // self.kv_heads
