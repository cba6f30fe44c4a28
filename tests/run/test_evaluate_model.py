"""``roost eval`` outside of a run: adapters on their base model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import roost
from roost.errors import ModelError
from roost.model.source import tiny_model_folder
from roost.run.display import QuietDisplay
from roost.run.evaluate_model import config_for_model, evaluate_model
from roost.run.evaluation import EvalResult
from roost.run.launch import PythonObjects
from support.tiny_runs import SECTIONS, TinyRun


@pytest.fixture
def adapter(lora_run: TinyRun, tmp_path: Path) -> Path:
    """A copy of a run's adapter that stands alone."""
    folder = tmp_path / "adapter"
    shutil.copytree(lora_run.folder.final, folder)
    return folder


def evaluate(model: Path, **sections: Any) -> EvalResult:
    """On the task that the run trained on, with the prompts that it held out."""
    tables = {name: SECTIONS[name] for name in ("data", "rewards", "rollout", "eval")}
    return roost.evaluate(model, generations=2, **{**tables, **sections})


def test_an_adapter_scores_as_the_run_that_made_it(adapter: Path, lora_run: TinyRun) -> None:
    of_run = roost.evaluate(lora_run.folder.root, generations=2)
    assert evaluate(adapter).as_dict() == of_run.as_dict()
    base = evaluate(tiny_model_folder())
    assert base.mean_length != of_run.mean_length or base.reward != of_run.reward


def test_without_its_base_model_it_says_what_to_do(adapter: Path) -> None:
    path = adapter / "adapter_config.json"
    table = json.loads(path.read_text())
    del table["base_model_name_or_path"]
    path.write_text(json.dumps(table))
    with pytest.raises(ModelError, match=r"names no base_model_name_or_path.*model\.path"):
        evaluate(adapter)


def test_the_base_model_can_be_named(adapter: Path) -> None:
    """A base that has moved since: what is named takes the place of what the adapter says."""
    path = adapter / "adapter_config.json"
    table = json.loads(path.read_text())
    table["base_model_name_or_path"] = "/moved/away"
    path.write_text(json.dumps(table))
    with pytest.raises(ModelError, match="/moved/away"):
        evaluate(adapter)
    tables = {name: SECTIONS[name] for name in ("data", "rewards", "rollout", "eval")}
    subject = config_for_model(str(adapter), {**tables, "model": {"path": "tiny"}}, Path.cwd())
    assert subject.config.model.path == "tiny"
    assert subject.config.model.tokenizer == str(adapter)
    result = evaluate_model(
        subject, QuietDisplay(), generations=1, pass_reward=1.0, objects=PythonObjects()
    )
    assert result.prompts == SECTIONS["eval"]["prompts"]


def test_pickled_weights_are_not_read(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors"):
        evaluate(adapter)
