"""Plans on the cards of a hardware guide whose arithmetic is printed: memory as on the box (96 GB),
2 bytes a weight, cache in whole samples of 512 + 4,096 tokens, 8B on cards of its own copy."""

from __future__ import annotations

import pytest

from roost.errors import RoostError
from roost.planner.cards import registry
from roost.planner.models import find_shape
from roost.planner.plan import Plan, make_plan
from roost.planner.request import Hardware, Layout, Request, Workload


def plan_8b(utilization: float, *, mode: str = "colocate", completion: int = 4096) -> Plan:
    hardware = Hardware(registry().card("RTX PRO 6000"), gpus_per_node=2)
    request = Request(
        find_shape("Llama-3.1-8B"),
        hardware,
        Workload(completion_tokens=completion),
        convention="listed",
    )
    if mode == "server":
        return make_plan(request, Layout("server", 1, "ddp", 1, 1, 1, utilization, 0))
    return make_plan(request, Layout("colocate", 2, "ddp", 2, 1, 2, utilization, 0))


@pytest.mark.parametrize(("utilization", "rollouts"), [(0.3, 21), (0.5, 52)])
def test_resident_rollouts_of_the_guide(utilization: float, rollouts: int) -> None:
    assert plan_8b(utilization).value("rollout.resident_rollouts") == rollouts


def test_server_rollouts_of_the_guide() -> None:
    assert plan_8b(0.92, mode="server").value("rollout.resident_rollouts") == 119


def test_weights_and_states_of_the_guide() -> None:
    plan = plan_8b(0.5)
    assert plan.value("rollout.weight_bytes") == 2 * 8_030_261_248
    assert plan.value("trainer.adapter_parameters") == 41_943_040
    assert plan.value("trainer.state_bytes") == 2 * 8_030_261_248 + 16 * 41_943_040


def test_phases_are_whole_bytes_and_sums_of_their_terms() -> None:
    for phase in plan_8b(0.5).phases:
        assert all(isinstance(term.bytes, int) for term in phase.terms)
        assert phase.bytes == sum(term.bytes for term in phase.terms)


def test_longer_completions_never_leave_room_for_more() -> None:
    lengths = (512, 2048, 8192)
    held = [plan_8b(0.5, completion=n).value("rollout.resident_rollouts") for n in lengths]
    assert held == sorted(held, key=lambda count: -(count or 0))
    assert held[0] != held[-1]


def test_an_explanation_names_formula_and_inputs() -> None:
    text = "\n".join(plan_8b(0.5).explain("rollout.resident_rollouts").lines())
    assert "52" in text
    assert "formula:" in text


def test_an_unknown_card_gets_a_suggestion() -> None:
    with pytest.raises(RoostError, match="Did you mean 'RTX PRO 6000"):
        registry().card("RTX 6000 Prp")
