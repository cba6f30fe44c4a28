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

    A fixed time besides the payload: within a node that of a kernel, and between ``k`` nodes that
    of each of the ``2 (k - 1)`` hops of a ring.
    """
    if tp == 1:
        return 0.0
    within, nodes = _spread_over(request, tp)
    fixed = 0.0
    if within > 1:
        near = link_between(request.hardware, within).kind
        fixed = constants.nvlink_allreduce_s if near == "NVLink" else constants.pcie_allreduce_s
    if nodes > 1:
        far = link_between(request.hardware, tp).gbps
        fixed += (
            2
            * (nodes - 1)
            * (constants.rdma_hop_s if far >= RDMA_GBPS else constants.network_hop_s)
        )
    return fixed + payload_seconds(request, tp, sequences, constants)


def payload_seconds(request: Request, tp: int, tokens: float, constants: Constants) -> float:
    """An all-reduce's bytes on the links, for the hidden states of so many tokens.

    ``2 (n - 1) / n`` of the payload cross the link of ``n`` cards; over several nodes first within
    each and then between them.
    """
    payload = tokens * 2 * request.model.shape.hidden
    within, nodes = _spread_over(request, tp)
    near, far = link_between(request.hardware, within), link_between(request.hardware, tp)
    rate = near.rate(constants, nominal=False)
    if near.kind == "PCIe":
        rate = constants.pcie_allreduce_share * near.gbps * 1e9
    seconds = 2 * (within - 1) / within * payload / rate
    if nodes > 1:
        seconds += 2 * (nodes - 1) / nodes * payload / far.rate(constants, nominal=False)
    return seconds


def _spread_over(request: Request, tp: int) -> tuple[int, int]:
    """Cards of one engine that a fast link joins, and how many such sets it has."""
    if link_between(request.hardware, tp).kind != "network":
        return tp, 1
    within = min(tp, request.hardware.gpus_per_node)
    return within, -(-tp // within)
