"""What a resumed run takes from the run before, and what from its recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w

from roost.run.resumed import resumed_config
from support.tiny_runs import SECTIONS, TinyRun


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The one that the run was started from, which leaves the micro-batch to the plan."""
    path = tmp_path / "recipe.toml"
    path.write_text(tomli_w.dumps(SECTIONS))
    assert "micro_batch_tokens" not in SECTIONS["train"]
    return path


def test_what_the_plan_chose_stays_with_the_run(full_run: TinyRun, recipe: Path) -> None:
    """Chosen anew, with less memory free, it would sum in another order."""
    with_recipe = resumed_config(full_run.folder, recipe=recipe).train
    assert with_recipe == resumed_config(full_run.folder).train
    assert with_recipe.micro_batch_tokens is not None
    assert with_recipe.gradient_checkpointing is False


def test_it_may_be_set_anew(full_run: TinyRun, recipe: Path) -> None:
    overrides = ["train.micro_batch_tokens=77", "train.gradient_checkpointing=true"]
    train = resumed_config(full_run.folder, overrides, recipe).train
    assert train.micro_batch_tokens == 77
    assert train.gradient_checkpointing is True


def test_a_run_keeps_its_folder(full_run: TinyRun, recipe: Path) -> None:
    config = resumed_config(full_run.folder, ["output.folder=elsewhere"], recipe)
    assert config.output.folder == str(full_run.folder.root)
