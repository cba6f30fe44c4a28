"""The figures of a hardware guide, through `roost plan --convention listed --json`.

Expected values and tolerances come from ``data/guide_numbers.json`` alone. Each row here says which
plan the guide speaks of, and where in its JSON the figure stands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.plans import plan_json

GUIDE = json.loads((Path(__file__).parent / "data" / "guide_numbers.json").read_text())
EXPECTED = {number["name"]: number for number in GUIDE["numbers"]}
TABLE = {row["name"]: row["rollouts_floor"] for row in GUIDE["unprinted_table"]}

STEP = "--prompts 16 --generations 8 --prompt-length 512 --completion-length 4096 --lora-rank 16"
PRO, H200 = "RTX PRO 6000", "H200 NVL"
GB = 1e9


@cache
def plan(model: str, gpu: str, gpus: int, options: str) -> dict[str, Any]:
    return plan_json(
        *("--model", model, "--gpu", gpu, "--gpus", str(gpus), "--convention", "listed"),
        *STEP.split(),
        *options.split(),
    )


def colocated(share: float) -> dict[str, Any]:
    options = f"--method lora --mode colocate --gpu-memory-utilization {share} --sleep-level 0"
    return plan("Llama-3.1-8B", PRO, 2, options)


def server_8b() -> dict[str, Any]:
    return plan("Llama-3.1-8B", PRO, 2, "--method lora --mode server")


def server_32b(strategy: str = "ddp", gpu: str = PRO) -> dict[str, Any]:
    options = f"--method lora --mode server --tensor-parallel 2 --strategy {strategy}"
    return plan("Qwen3-32B", gpu, 4, options)


def server_70b(gpu: str = H200) -> dict[str, Any]:
    options = "--method lora --mode server --tensor-parallel 4 --strategy fsdp"
    return plan("Llama-3.3-70B", gpu, 8, options)


def full_8b() -> dict[str, Any]:
    return plan("Llama-3.1-8B", PRO, 2, "--method full --strategy fsdp --beta 0.04 --mode colocate")


def at(make: Callable[[], dict[str, Any]], path: str, unit: float = 1) -> Callable[[], float]:
    def read() -> float:
        section, key = path.split(".")
        return float(make()[section][key] / unit)

    return read


def bytes_a_parameter() -> float:
    full = full_8b()
    return float(full["trainer"]["state_bytes"] / full["model"]["parameters"])


def two_pro() -> dict[str, Any]:
    return colocated(0.5)


FIGURES: dict[str, Callable[[], float]] = {
    "params_Llama-3.1-8B": at(two_pro, "model.parameters", 1e9),
    "params_Qwen3-32B": at(server_32b, "model.parameters", 1e9),
    "params_Llama-3.3-70B": at(server_70b, "model.parameters", 1e9),
    "kv_per_token_Llama-3.1-8B": at(two_pro, "model.kv_bytes_per_token", 1024),
    "kv_per_token_Qwen3-32B": at(server_32b, "model.kv_bytes_per_token", 1024),
    "kv_per_token_Llama-3.3-70B": at(server_70b, "model.kv_bytes_per_token", 1024),
    "rollout_tokens": at(two_pro, "rollout.tokens_per_rollout"),
    "rollouts_per_step": at(two_pro, "rollout.rollouts_per_step"),
    "tokens_decoded_per_step": at(two_pro, "rollout.tokens_per_step"),
    "colocate_share_0.3_of_96": at(lambda: colocated(0.3), "rollout.engine_share_bytes", GB),
    "weights_bf16_8B": at(two_pro, "rollout.weight_bytes", GB),
    "cache_left_0.3": at(lambda: colocated(0.3), "rollout.kv_cache_bytes", GB),
    "rollouts_0.3": at(lambda: colocated(0.3), "rollout.resident_rollouts"),
    "colocate_share_0.5_of_96": at(two_pro, "rollout.engine_share_bytes", GB),
    "rollouts_0.5": at(two_pro, "rollout.resident_rollouts"),
    "left_for_training_0.5": at(two_pro, "trainer.available_bytes_per_gpu", GB),
    "lora_states_8B_r16": at(two_pro, "trainer.state_bytes", GB),
    "server_share_0.92_of_96": at(server_8b, "rollout.engine_share_bytes", GB),
    "rollouts_0.92": at(server_8b, "rollout.resident_rollouts"),
    "weights_bf16_32B": at(server_32b, "rollout.weight_bytes", GB),
    "lora_states_32B_r16": at(server_32b, "trainer.state_bytes", GB),
    "left_for_activations_32B_96": at(server_32b, "trainer.free_bytes_per_gpu", GB),
    "fsdp2_per_card_32B": at(lambda: server_32b("fsdp"), "trainer.state_bytes_per_gpu", GB),
    "lora_states_70B_r16": at(server_70b, "trainer.state_bytes", GB),
    "fsdp4_per_card_70B": at(server_70b, "trainer.state_bytes_per_gpu", GB),
    "fsdp_weight_traffic_70B_per_fwd_bwd": at(
        server_70b, "traffic.fsdp_bytes_per_gpu_per_step", GB
    ),
    "adapter_grad_allreduce_70B": at(server_70b, "traffic.gradient_allreduce_bytes", GB),
    "weights_bf16_70B": at(server_70b, "rollout.weight_bytes", GB),
    "weight_sync_time_70B_pcie5": at(server_70b, "sync.seconds"),
    "bytes_per_param_mixed_adam": bytes_a_parameter,
    "full_ft_states_8B": at(full_8b, "trainer.state_bytes", GB),
    "full_ft_fsdp2_8B": at(full_8b, "trainer.state_bytes_per_gpu", GB),
    "ref_model_8B": at(full_8b, "trainer.reference_bytes", GB),
    "power_wall_2_cards_EPYC9135": at(two_pro, "power.watts_at_wall", 1e3),
    "power_wall_4_cards_EPYC9355": at(server_32b, "power.watts_at_wall", 1e3),
    "power_wall_8_cards_EPYC9555": at(server_70b, "power.watts_at_wall", 1e3),
}

NO_PLAN = {
    "unsloth_gptoss_step_time": "4 hours over 1000 steps, both quoted: not a figure of any plan",
}


@pytest.mark.parametrize("name", FIGURES)
def test_figure_of_the_guide(name: str) -> None:
    expected = EXPECTED[name]
    # The printed digits' own tolerance; the last one is for a float's rounding of it.
    tolerance = expected["tolerance_abs"] + 1e-9
    assert FIGURES[name]() == pytest.approx(expected["expected_as_printed"], abs=tolerance, rel=0)


@pytest.mark.parametrize(
    ("row", "make"),
    [
        ("8B, 1x RTX PRO 6000 (server)", server_8b),
        ("32B, TP2 RTX PRO 6000", server_32b),
        ("32B, TP2 H200 NVL", lambda: server_32b(gpu=H200)),
        ("70B, TP4 H200 NVL", server_70b),
        ("70B, TP4 RTX PRO 6000", lambda: server_70b(PRO)),
    ],
)
def test_rollouts_that_the_guide_implies(row: str, make: Callable[[], dict[str, Any]]) -> None:
    assert make()["rollout"]["resident_rollouts"] == TABLE[row]


def test_every_figure_that_is_not_quoted_is_tested() -> None:
    derived = {name for name, number in EXPECTED.items() if number["kind"] != "quoted"}
    assert derived == {*FIGURES, *NO_PLAN}
    assert TABLE.keys() == {
        "8B, 1x RTX PRO 6000 (server)",
        "32B, TP2 RTX PRO 6000",
        "32B, TP2 H200 NVL",
        "70B, TP4 H200 NVL",
        "70B, TP4 RTX PRO 6000",
    }


def test_full_parameter_training_of_32b_fits_one_server_of_eight() -> None:
    full = plan("Qwen3-32B", PRO, 8, "--method full --strategy fsdp")
    assert full["fits"]
    # 16 bytes a parameter over eight cards, by hand.
    assert full["trainer"]["state_bytes_per_gpu"] == 16 * 32_762_123_264 // 8
