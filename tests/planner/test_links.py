"""What joins cards, and what crosses it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roost.planner.cards import Card, registry
from roost.planner.constants import Constants
from roost.planner.links import Link, link_between
from roost.planner.models import find_shape
from roost.planner.plan import Plan, make_plan
from roost.planner.request import Hardware, Layout, Request, Strategy, Training
from support.toy_plans import PARAMETERS, card, request

NVLINK = card(nvlink_gbps=100, nvlink_domain=8)
BRIDGE = card(nvlink_gbps=50, nvlink_domain=2)
RACK = card(nvlink_gbps=900, nvlink_domain=72)
BARE = replace(card(), pcie_gbps=None)


@pytest.mark.parametrize(
    ("kind", "per_node", "nodes", "gpus", "expected"),
    [
        (NVLINK, 8, 1, 8, Link("NVLink", 100)),
        (NVLINK, 8, 2, 8, Link("NVLink", 100)),
        (NVLINK, 8, 2, 9, Link("network", 50)),
        # Cards of one domain that sit in servers of their own are not joined by it.
        (NVLINK, 1, 2, 2, Link("network", 50)),
        (BRIDGE, 4, 1, 2, Link("NVLink", 50)),
        (BRIDGE, 4, 1, 3, Link("PCIe", 32)),
        (RACK, 4, 2, 8, Link("NVLink", 900)),
        (RACK, 8, 10, 73, Link("network", 50)),
        (BARE, 2, 1, 2, Link("PCIe", 32)),
    ],
)
def test_the_slowest_link_of_a_group(
    kind: Card, per_node: int, nodes: int, gpus: int, expected: Link
) -> None:
    assert link_between(Hardware(kind, per_node, nodes), gpus) == expected


def test_a_measured_pcie_rate_replaces_the_cards() -> None:
    assert link_between(Hardware(card(), 2, pcie_gbps=20), 2) == Link("PCIe", 20)


def test_what_a_transfer_reaches_of_each_link() -> None:
    constants = Constants(pcie_efficiency=0.5, nvlink_efficiency=0.25)
    assert Link("PCIe", 32).rate(constants, nominal=False) == 16e9
    assert Link("network", 32).rate(constants, nominal=False) == 16e9
    assert Link("NVLink", 32).rate(constants, nominal=False) == 8e9
    assert Link("NVLink", 32).rate(constants, nominal=True) == 32e9


def plan(strategy: Strategy, training: Training, gpus: int = 4) -> Plan:
    asked = request(Hardware(card(), gpus_per_node=gpus), training=training)
    return make_plan(asked, Layout("colocate", gpus, strategy, gpus, 1, gpus, 0.3, 1))


def test_a_guide_s_gathers_of_70b_over_four_cards() -> None:
    # ZeRO-3 with a frozen base: twice (n - 1) / n of 2 bytes a weight, 212 GB.
    asked = Request(
        find_shape("Llama-3.3-70B"),
        Hardware(registry().card("RTX PRO 6000"), gpus_per_node=8),
        convention="listed",
    )
    made = make_plan(asked, Layout("server", 4, "fsdp", 4, 4, 1, 0.92, 0))
    assert made.value("traffic.fsdp_bytes_per_gpu_per_step") == 3 * 70_553_706_496
    assert made.value("sync.bytes") == 2 * 70_553_706_496


def test_gradients_of_a_full_run_are_reduced_once() -> None:
    made = plan("ddp", Training("full"))
    assert made.value("traffic.gradient_allreduce_bytes") == 4 * PARAMETERS
    assert made.value("traffic.gradient_wire_bytes_per_gpu") == 6 * PARAMETERS
    assert made.value("traffic.fsdp_bytes_per_gpu_per_step") == 0


def test_fsdp_scatters_gradients_in_place_of_reducing_them() -> None:
    made = plan("fsdp", Training("full"))
    assert made.value("traffic.gradient_allreduce_bytes") == 0
    # Two gathers and a scatter of three quarters of the weights, in one micro-batch.
    assert made.value("traffic.fsdp_bytes_per_gpu_per_step") == 3 * 2 * PARAMETERS * 3 // 4


def test_one_card_sends_no_gradients() -> None:
    made = plan("ddp", Training("full"), gpus=1)
    assert made.value("traffic.gradient_allreduce_bytes") == 0
    assert made.value("traffic.gradient_wire_bytes_per_gpu") == 0


def test_an_adapter_s_gradients() -> None:
    made = plan("ddp", Training(lora_rank=4))
    # rank x (inputs + outputs): q, o 64 + 64; k, v 64 + 32; gate, up, down 64 + 128.
    adapter = 2 * 4 * (2 * 128 + 2 * 96 + 3 * 192)
    assert made.value("trainer.adapter_parameters") == adapter
    assert made.value("traffic.gradient_allreduce_bytes") == 4 * adapter


def test_a_sync_within_a_card_reads_and_writes_device_memory() -> None:
    made = plan("ddp", Training(), gpus=1)
    overhead = Constants().sync_overhead_s
    assert made.value("sync.seconds") == pytest.approx(2 * PARAMETERS / 500e9 + overhead)
