"""Seconds of one decode step of an engine, by what they are spent on."""

from __future__ import annotations

from dataclasses import dataclass

from roost.planner.cards import Card
from roost.planner.constants import Constants
from roost.planner.engine_memory import served_dtype, weight_bytes
from roost.planner.links import link_between
from roost.planner.model_shape import ModelShape
from roost.planner.request import BYTES, Layout, Request

DEFAULT_TFLOPS = 100.0
"""Where a card has no figure for 16-bit arithmetic."""
RDMA_GBPS = 12.5
"""Networks of 100 Gbit/s and more are taken to bypass the kernel (InfiniBand, RoCE)."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Seconds of one decode step of one engine, by what they are spent on."""

    weights: float
    arithmetic: float
    cache: float
    launches: float
    allreduce: float
    sequences: float

    @property
    def total(self) -> float:
        """Reading weights and multiplying overlap; the rest adds."""
        return (
            max(self.weights, self.arithmetic)
            + self.cache
            + self.launches
            + self.allreduce
            + self.sequences
        )

    @property
    def bound(self) -> str:
        """What takes longest."""
        parts = {
            "memory bandwidth": (self.weights if self.weights >= self.arithmetic else 0)
            + self.cache,
            "arithmetic": self.arithmetic if self.arithmetic > self.weights else 0,
            "launches and sampler": self.launches + self.sequences,
            "link": self.allreduce,
        }
        return max(parts, key=lambda name: parts[name])


def peak_flops(card: Card) -> float:
    """16-bit operations a second."""
    return (card.bf16_tflops or DEFAULT_TFLOPS) * 1e12


def read_parameters(shape: ModelShape, sequences: float) -> float:
    """Weights that a decode step of so many sequences reads: of the experts, those that any of
    them chose, ``1 - (1 - k/E)^B`` of all."""
    read = 0.0
    for block in shape.blocks:
        for linear in block.linears:
            share = 1.0
            if linear.copies > 1:
                share = 1 - (1 - linear.active / linear.copies) ** max(1.0, sequences)
            read += block.count * linear.parameters * share
    return read + shape.embedding_parameters


def decode_step(
    request: Request, layout: Layout, constants: Constants, sequences: float, context: float
) -> DecodeStep:
    """One decode step of ``sequences`` rollouts of mean length ``context``."""
    shape, card, tp = request.model.shape, request.hardware.card, layout.tensor_parallel
    bandwidth = card.bandwidth_gbps * 1e9 * constants.bandwidth_efficiency
    width = weight_bytes(shape, served_dtype(request)) / shape.parameters
    flops = peak_flops(card)
    per_token = shape.kv_elements(int(context), tp) * BYTES[request.engine.cache_dtype]
    eager = request.engine.enforce_eager
    return DecodeStep(
        weights=width * read_parameters(shape, sequences) / (tp * bandwidth),
        arithmetic=2 * shape.multiplied_parameters * sequences / (tp * flops),
        cache=sequences * per_token / bandwidth,
        launches=shape.layers * (constants.eager_layer_s if eager else constants.layer_launch_s),
        allreduce=2 * shape.layers * allreduce_seconds(request, tp, sequences, constants),
        sequences=sequences * constants.sequence_s,
    )


def allreduce_seconds(request: Request, tp: int, sequences: float, constants: Constants) -> float:
    """One all-reduce of a decode step's hidden states over the cards of an engine.

    A fixed time, and ``2 (n - 1) / n`` of the payload on the link. Between nodes the fixed time is
    that of each of the ``2 (n - 1)`` hops of a ring; within one it is one kernel.
    """
    if tp == 1:
        return 0.0
    link = link_between(request.hardware, tp)
    wire = 2 * (tp - 1) / tp * sequences * 2 * request.model.shape.hidden
    if link.kind == "network":
        remote = link.gbps >= RDMA_GBPS
        hop = constants.rdma_hop_s if remote else constants.network_hop_s
        return 2 * (tp - 1) * hop + wire / link.rate(constants, nominal=False)
    if link.kind == "NVLink":
        return constants.nvlink_allreduce_s + wire / link.rate(constants, nominal=False)
    return constants.pcie_allreduce_s + wire / (constants.pcie_allreduce_share * link.gbps * 1e9)
