"""A decode step of a model that can be computed by hand."""

from __future__ import annotations

import pytest

from roost.planner.constants import Constants
from roost.planner.decode import allreduce_seconds, decode_step, payload_seconds, read_parameters
from roost.planner.models import find_shape
from roost.planner.request import Engine, Hardware, Layout
from support.toy_plans import CACHE_BYTES, HEAD, LINEAR, card, request

CONSTANTS = Constants(
    bandwidth_efficiency=0.5,
    layer_launch_s=1e-3,
    eager_layer_s=4e-3,
    sequence_s=1e-4,
    pcie_allreduce_s=1e-5,
    pcie_allreduce_share=0.5,
    nvlink_allreduce_s=2e-6,
    nvlink_efficiency=0.8,
    network_hop_s=1e-3,
    rdma_hop_s=1e-5,
    pcie_efficiency=0.9,
)
ONE = Layout("colocate", 1, "ddp", 1, 1, 1, 0.5, 0)
PAIR = Layout("server", 1, "ddp", 2, 2, 1, 0.9, 0)
PAYLOAD = 3 * 64 * 2
"""Bytes of three tokens' hidden states."""


def test_one_card_by_hand() -> None:
    step = decode_step(request(), ONE, CONSTANTS, sequences=3, context=100)
    assert step.weights == pytest.approx(2 * (LINEAR + HEAD) / 500e9)
    assert step.arithmetic == pytest.approx(2 * (LINEAR + HEAD) * 3 / 100e12)
    assert step.cache == pytest.approx(3 * 100 * CACHE_BYTES / 500e9)
    assert step.launches == pytest.approx(2e-3)
    assert step.sequences == pytest.approx(3e-4)
    assert step.allreduce == 0
    parts = step.weights + step.cache + step.launches + step.sequences
    assert step.total == pytest.approx(parts)
    assert step.bound == "launches and sampler"


def test_reading_weights_and_multiplying_overlap() -> None:
    slow = request(Hardware(card(bf16_tflops=1e-4)))
    step = decode_step(slow, ONE, CONSTANTS, sequences=3, context=0)
    assert step.arithmetic > step.weights
    assert step.total == pytest.approx(step.arithmetic + step.launches + step.sequences)
    assert step.bound == "arithmetic"


def test_without_graphs_each_layer_costs_its_launches() -> None:
    eager = request(engine=Engine(enforce_eager=True))
    assert decode_step(eager, ONE, CONSTANTS, 1, 1).launches == pytest.approx(8e-3)


def test_two_cards_share_weights_and_heads_and_reduce_twice_a_layer() -> None:
    pair = request(Hardware(card(), gpus_per_node=3))
    step = decode_step(pair, PAIR, CONSTANTS, sequences=3, context=100)
    assert step.weights == pytest.approx(2 * (LINEAR + HEAD) / 2 / 500e9)
    assert step.cache == pytest.approx(3 * 100 * CACHE_BYTES / 2 / 500e9)
    assert step.allreduce == pytest.approx(2 * 2 * (1e-5 + PAYLOAD / 16e9))


def test_an_allreduce_over_nvlink() -> None:
    joined = request(Hardware(card(nvlink_gbps=100, nvlink_domain=8), gpus_per_node=8))
    # 2 (n - 1) / n of the payload: 1.5 of it between four cards.
    expected = 2e-6 + 1.5 * PAYLOAD / 80e9
    assert allreduce_seconds(joined, 4, 3, CONSTANTS) == pytest.approx(expected)


@pytest.mark.parametrize(("gbps", "hop"), [(1.25, 1e-3), (12.5, 1e-5)])
def test_an_allreduce_between_nodes_of_one_card(gbps: float, hop: float) -> None:
    apart = request(Hardware(card(), nodes=4, network_gbps=gbps))
    expected = 6 * hop + 1.5 * PAYLOAD / (gbps * 0.9e9)
    assert allreduce_seconds(apart, 4, 3, CONSTANTS) == pytest.approx(expected)


def test_an_allreduce_over_nodes_reduces_within_each_first() -> None:
    both = request(Hardware(card(), gpus_per_node=2, nodes=2, network_gbps=50))
    within, between = 1.0 * PAYLOAD / 16e9, 1.0 * PAYLOAD / 45e9
    expected = 1e-5 + 2 * 1e-5 + within + between
    assert allreduce_seconds(both, 4, 3, CONSTANTS) == pytest.approx(expected)


def test_one_card_reduces_nothing() -> None:
    assert allreduce_seconds(request(), 1, 100, CONSTANTS) == 0
    assert payload_seconds(request(), 1, 100, CONSTANTS) == 0


def test_a_small_batch_reads_only_the_experts_that_it_chose() -> None:
    shape = find_shape("Qwen3-30B-A3B").shape
    dense = shape.linear_parameters - 48 * 128 * 3 * 2048 * 768
    one = read_parameters(shape, 1)
    # One token reads its 8 of 128 experts; a thousand read all of them.
    assert one == pytest.approx(dense + 48 * 8 * 3 * 2048 * 768 + shape.embedding_parameters)
    assert read_parameters(shape, 1000) == pytest.approx(shape.read_parameters, rel=1e-6)
