"""A model and a card small enough to plan by hand."""

from __future__ import annotations

from roost.planner.book import Book
from roost.planner.cards import Card
from roost.planner.constants import Constants
from roost.planner.models import from_config
from roost.planner.plan import Plan, make_plan
from roost.planner.request import Engine, Hardware, Layout, Request, Training, Workload
from roost.planner.terms import Value

LINEAR = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
"""Weights of the two layers: queries and output, keys and values, the feed-forward's three."""
HEAD = 1000 * 64
PARAMETERS = LINEAR + 2 * HEAD + 2 * 2 * 64 + 64
CACHE_BYTES = 2 * 2 * 2 * 16 * 2
"""Of a token: keys and values, two layers, two heads of 16, two bytes."""

MODEL = from_config(
    {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "tie_word_embeddings": False,
    },
    "toy",
    "made up",
)


def card(**fields: float) -> Card:
    """10 GiB, 1,000 GB/s, 100 TFLOPS, 100 W, PCIe at 32 GB/s."""
    known: dict[str, float] = {
        "memory_listed_gb": 10,
        "memory_visible_bytes": 10 * 2**30,
        "bandwidth_gbps": 1000,
        "bf16_tflops": 100,
        "tdp_w": 100,
        "pcie_gbps": 32,
    }
    return Card(name="toy", source="made up", **{**known, **fields})  # type: ignore[arg-type]


def request(
    hardware: Hardware | None = None,
    workload: Workload | None = None,
    training: Training | None = None,
    **fields: object,
) -> Request:
    """The small model on one card."""
    return Request(
        MODEL,
        hardware or Hardware(card()),
        workload or Workload(2, 2, 16, 16),
        training or Training(),
        **fields,  # type: ignore[arg-type]
    )


def value(book: Book, name: str) -> int | float:
    """A figure that was written down."""
    return book.figures[name].value


def inputs(book: Book, name: str) -> dict[str, Value]:
    """What went into a figure."""
    return dict(book.figures[name].inputs)


CONSTANTS = Constants(
    bandwidth_efficiency=0.5,
    layer_launch_s=1e-3,
    sequence_s=1e-4,
    prefill_efficiency=0.25,
    full_mfu=0.5,
    adapter_mfu=0.1,
    forward_mfu=0.2,
    train_overhead_s=2.0,
    forward_overhead_s=0.5,
    sleep_s=1.0,
    host_copy_gbps=1e-3,
)
"""Round shares and times, so that seconds can be computed by hand."""
MULTIPLIED = LINEAR + HEAD
"""Weights that a token is multiplied with."""


def timed_plan(
    workload: Workload, *, training: Training | None = None, sleep: int = 0, seqs: int | None = None
) -> Plan:
    """The small model colocated on one card of its own, timed with ``CONSTANTS``."""
    asked = request(
        Hardware(card()), workload, training, engine=Engine(max_num_seqs=seqs, graph_inside=False)
    )
    return make_plan(asked, Layout("colocate", 1, "ddp", 1, 1, 1, 0.5, sleep), CONSTANTS)
