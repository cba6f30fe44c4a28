"""What crosses the links between cards: weights to the engines, shards, gradients."""

from __future__ import annotations

from dataclasses import dataclass

from roost.planner.book import Book
from roost.planner.constants import Constants
from roost.planner.engine_memory import weight_bytes
from roost.planner.request import Hardware, Layout, Request
from roost.planner.trainer_memory import TrainerMemory

DEFAULT_PCIE_GBPS = 32.0
"""Where a card has no figure: Gen4 x16."""
SERVER_CARDS = 8
"""The most that one server holds."""


@dataclass(frozen=True, slots=True)
class Link:
    """What joins a group of cards."""

    kind: str
    gbps: float
    """One direction, nominal, 1e9 bytes a second."""

    def rate(self, constants: Constants, *, nominal: bool) -> float:
        """Bytes a second that a transfer reaches."""
        if nominal:
            return self.gbps * 1e9
        nvlink = self.kind == "NVLink"
        share = constants.nvlink_efficiency if nvlink else constants.pcie_efficiency
        return self.gbps * 1e9 * share


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes and seconds on the links in one step."""

    sync_s: float
    gather_s: float
    """Of FSDP's shards, for each card."""
    allreduce_s: float
    link: Link


def link_between(hardware: Hardware, gpus: int) -> Link:
    """What joins so many cards: the slowest link among them."""
    card = hardware.card
    apart = gpus > hardware.gpus_per_node
    # A domain of more cards than a server holds reaches over servers (NVL72).
    if apart and not SERVER_CARDS < card.nvlink_domain >= gpus:
        return Link("network", hardware.network_gbps)
    if card.nvlink_gbps and gpus <= card.nvlink_domain:
        return Link("NVLink", card.nvlink_gbps)
    return Link("PCIe", hardware.pcie_gbps or card.pcie_gbps or DEFAULT_PCIE_GBPS)


def traffic(
    request: Request, layout: Layout, trainer: TrainerMemory, book: Book, constants: Constants
) -> Traffic:
    """Plan the transfers of one step."""
    sync_s = _sync(request, layout, trainer, book, constants)
    inner = link_between(request.hardware, trainer.shards)
    gathered = _gather_bytes(request, layout, trainer, book)
    gather_s = gathered / inner.rate(constants, nominal=request.listed)
    scattered = request.training.method == "full" and trainer.shards == layout.trainer_gpus
    payload = book.bytes(
        "traffic.gradient_allreduce_bytes",
        0 if scattered or layout.trainer_gpus == 1 else 4 * trainer.trained,
        "4 B x trained parameters: the float32 gradients; 0 on one card, and where FSDP scatters "
        "those of all weights",
        "payload, not bytes on the wire",
        trained_parameters=trainer.trained,
    )
    copies = layout.trainer_gpus
    wire = book.bytes(
        "traffic.gradient_wire_bytes_per_gpu",
        2 * (copies - 1) * payload // copies,
        "2 (n - 1) / n x gradient_allreduce_bytes",
        "ring all-reduce",
        trainer_gpus=copies,
        gradient_allreduce_bytes=payload,
    )
    outer = link_between(request.hardware, layout.trainer_gpus)
    return Traffic(sync_s, gather_s, wire / outer.rate(constants, nominal=request.listed), inner)


def micro_batches(request: Request, layout: Layout, trainer: TrainerMemory) -> int:
    """Forwards of one card in a step."""
    tokens = int(request.trained_tokens)
    return max(1, -(-tokens // (trainer.micro_batch_tokens * layout.trainer_gpus)))


def _gather_bytes(request: Request, layout: Layout, trainer: TrainerMemory, book: Book) -> int:
    """Weights that a card receives to hold each layer once in a forward and once in a backward."""
    weights, shards = 2 * request.model.shape.parameters, trainer.shards
    full = request.training.method == "full"
    rounds = 3 if full else 2
    passes = 1 if request.listed else micro_batches(request, layout, trainer)
    return book.bytes(
        "traffic.fsdp_bytes_per_gpu_per_step",
        rounds * passes * (shards - 1) * weights // shards,
        "(gathers of forward and backward, and the gradients' scatter where the base trains) x "
        "micro-batches x (n - 1) / n x weight bytes",
        "ZeRO (arXiv:1910.02054), section 7",
        rounds=rounds,
        micro_batches=passes,
        shards=shards,
        weight_bytes=weights,
    )


def _sync(
    request: Request, layout: Layout, trainer: TrainerMemory, book: Book, constants: Constants
) -> float:
    adapter = request.engine.adapter_sync and request.training.method != "full"
    size = book.bytes(
        "sync.bytes",
        2 * trainer.adapter_parameters
        if adapter
        else weight_bytes(request.model.shape, "bfloat16"),
        "2 B x adapter parameters" if adapter else "2 B x parameters: the merged weights",
        request.model.source,
        parameters=trainer.adapter_parameters if adapter else request.model.shape.parameters,
    )
    if layout.mode == "colocate":
        # From the trainer's tensors to the engine's on the same card: a read and a write.
        rate = request.hardware.card.bandwidth_gbps * 1e9 / 2
        link, moved = "device memory", size // layout.tensor_parallel
        if trainer.shards > 1:
            joined = link_between(request.hardware, trainer.shards)
            rate, link = joined.rate(constants, nominal=request.listed), joined.kind
            moved = size
    else:
        joined = link_between(request.hardware, layout.trainer_gpus + layout.rollout_gpus)
        rate, link, moved = joined.rate(constants, nominal=request.listed), joined.kind, size
    overhead = 0.0 if request.listed else constants.sync_overhead_s
    return book.number(
        "sync.seconds",
        moved / rate + overhead,
        "s",
        "bytes / link rate + overhead",
        constants.source,
        bytes=moved,
        link=link,
        bytes_per_second=rate,
        overhead_s=overhead,
    )
