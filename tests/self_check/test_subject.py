"""What is checked: a recipe or a run, cut down, and only read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import load_file
from torch import Tensor

from roost.config.loading import build_config, merge
from roost.errors import CheckpointError, ConfigError
from roost.model.policy import Policy
from roost.run.display import QuietDisplay
from roost.self_check.subject import RATE, small, subject_of
from roost.self_check.trial import open_trial
from support.tiny_runs import SECTIONS, TinyRun, train_tiny


def test_model_engine_and_method_stay_and_the_work_is_small() -> None:
    sections: dict[str, Any] = {
        "model": {"path": "m", "dtype": "bfloat16"},
        "data": {"prompts_per_step": 32, "limit": 5000},
        "rollout": {
            "engine": "vllm",
            "mode": "server",
            "launch": True,
            "generations": 16,
            "max_completion_tokens": 4096,
            "temperature": 0.7,
            "staleness": 1,
        },
        "loss": {"type": "grpo", "beta": 0.1, "mask_truncated": True},
        "train": {
            "method": "lora",
            "weight_decay": 0.1,
            "warmup_steps": 1,
            "updates_per_batch": 4,
            "num_iterations": 2,
        },
        "lora": {"rank": 8, "learning_rate": 1e-5},
    }
    config = build_config(merge(SECTIONS, sections))
    cut = small(config)
    assert cut.model == config.model
    kept = {"generations": 4, "max_completion_tokens": 32, "staleness": 0}
    assert cut.rollout == config.rollout.model_copy(update=kept)
    assert cut.lora.rank == 8
    assert cut.loss.type == "grpo"
    assert (cut.train.method, cut.train.num_iterations) == ("lora", 2)
    assert cut.data.prompts_per_step == 4, "a part for each update of a batch"
    assert cut.data.limit == 64
    assert (cut.loss.beta, cut.train.weight_decay, cut.eval.prompts) == (0.0, 0.0, 0)
    assert not cut.loss.mask_truncated
    assert cut.correction.mode == "off"
    assert cut.peak_learning_rate == RATE


def test_a_recipe_that_has_less_keeps_it() -> None:
    little = {"data": {"prompts_per_step": 1, "limit": 3}, "rollout": {"generations": 2}}
    cut = small(build_config(merge(SECTIONS, little)))
    assert (cut.data.prompts_per_step, cut.data.limit) == (1, 3)
    assert (cut.rollout.generations, cut.rollout.max_completion_tokens) == (2, 6)


def test_a_recipe_starts_from_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(SECTIONS))
    subject = subject_of(path, ["rollout.generations=3"])
    assert (subject.base_dir, subject.run) == (tmp_path, None)
    assert subject.config.rollout.generations == 3


def test_neither_a_recipe_nor_a_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="RUN_OR_RECIPE = .*: not a run folder"):
        subject_of(tmp_path, [])
    with pytest.raises(ConfigError, match=r"odd\.toml': no such file"):
        subject_of(tmp_path / "odd.toml", [])


@pytest.fixture(params=["full_run", "lora_run"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made: TinyRun = request.getfixturevalue(request.param)
    return shutil.copytree(made.folder.root, tmp_path / "run")


def checked(root: Path) -> tuple[Policy, list[str]]:
    """The policy that is checked, and what was said."""
    display = QuietDisplay()
    with open_trial(subject_of(root, []), display) as trial:
        return trial.policy, display.lines


def equal(policy: Policy, saved: dict[str, Tensor]) -> bool:
    trained = policy.trainable_parameters()
    return trained.keys() == saved.keys() and all(
        torch.equal(trained[name], tensor) for name, tensor in saved.items()
    )


def test_a_run_is_checked_with_its_newest_weights_and_not_written_to(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    policy, said = checked(run)
    assert equal(policy, load_file(run / "checkpoints/step-2/weights.safetensors"))
    assert policy.version == 2
    assert "checking the checkpoint after step 2" in said
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_step_of_a_run_in_bfloat16_begins_at_its_weights(method: str, tmp_path: Path) -> None:
    """The optimizer's masters, from which a step writes them anew, are those of the run too."""
    sections = {
        "model": {"dtype": "bfloat16"},
        "train": {"method": method, "learning_rate": 1e-2},
    }
    folder = train_tiny(tmp_path / "run", tmp_path, sections).folder
    saved = load_file(folder.checkpoints / "step-2/weights.safetensors")
    with open_trial(subject_of(folder.root, []), QuietDisplay()) as trial:
        assert trial.step(lambda sample: float(sample.index % 2), rate=0.0)["grad_norm"] > 0
        assert equal(trial.policy, saved)


def test_a_run_without_checkpoints_with_what_it_ended_with(run: Path) -> None:
    saved = load_file(run / "checkpoints/step-2/weights.safetensors")
    shutil.rmtree(run / "checkpoints")
    assert equal(checked(run)[0], saved)


def test_a_run_that_has_neither_with_what_it_starts_from(run: Path) -> None:
    saved = load_file(run / "checkpoints/step-2/weights.safetensors")
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / "final")
    policy, said = checked(run)
    assert not equal(policy, saved)
    assert not any("checking" in line for line in said)
