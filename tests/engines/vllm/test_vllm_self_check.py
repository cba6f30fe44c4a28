"""`roost check` with the real vLLM: every fault that applies is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w
from vllm_support import needs_vllm

from support.commands import succeed
from support.tiny_runs import SECTIONS

pytestmark = [needs_vllm, pytest.mark.slow]

SKIPPED = {
    "full": {
        "stale-adapter": "full training has no adapter",
        "base-weight-changed": "full training has no adapter",
        "adapter-counted-twice": "full training has no adapter",
        "wake-without-sync": "stays awake",
    },
    "lora": {"stale-weights": "the adapter alone is sent", "wake-without-sync": "stays awake"},
}


@pytest.mark.parametrize(
    ("method", "mode"), [("full", "colocate"), ("lora", "colocate"), ("lora", "server")]
)
def test_all_is_well_and_what_does_not_apply_says_why(
    method: str, mode: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "run.toml"
    recipe.write_text(tomli_w.dumps(SECTIONS))
    sets = ["rollout.engine=vllm", f"rollout.mode={mode}", f"train.method={method}"]
    sets += ["rollout.launch=true"] if mode == "server" else []
    options = [word for one in sets for word in ("--set", one)]
    found = {one["name"]: one for one in succeed("check", recipe, *options, "--json").json}
    assert len(found) == 14
    skipped = {name: one["detail"] for name, one in found.items() if one["verdict"] == "skipped"}
    assert skipped.keys() == SKIPPED[method].keys()
    assert all(SKIPPED[method][name] in detail for name, detail in skipped.items())
    assert {one["verdict"] for name, one in found.items() if name not in skipped} == {"ok"}
    assert "samples the same" in found["learning-rate-0"]["detail"]
