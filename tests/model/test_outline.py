from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import MambaConfig, ViTConfig

from roost.config import ModelConfig
from roost.errors import ModelError
from roost.model.loading import load_model_config
from roost.model.outline import check_vocabulary, check_weights, outline
from roost.model.source import ModelSource, find_model, weight_shapes
from support.small_models import ARCHITECTURES, build

NOWHERE = ModelSource("there", None, local=True, trust_remote_code=False)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_save_pretrained_wrote_fits_its_config(architecture: str, tmp_path: Path) -> None:
    build(architecture).save_pretrained(tmp_path)
    where = find_model(ModelConfig(path=str(tmp_path)))
    skeleton = outline(where, load_model_config(where))
    assert all(parameter.is_meta for parameter in skeleton.parameters())
    shapes = weight_shapes(where)
    assert shapes is not None
    check_weights(where, skeleton, shapes)


def test_shards_are_read_together(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    where = find_model(ModelConfig(path=str(tmp_path)))
    shapes = weight_shapes(where)
    assert shapes is not None
    check_weights(where, outline(where, load_model_config(where)), shapes)


def test_a_shape_is_told_before_what_is_missing() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 4))
    with pytest.raises(ModelError, match=r"1 of its weights .*'0\.weight': \(5, 2\) instead"):
        check_weights(NOWHERE, model, {"0.weight": (5, 2)})
    with pytest.raises(ModelError, match=r"lack 3 tensors .*the first '0\.bias'"):
        check_weights(NOWHERE, model, {"0.weight": (3, 2)})


def test_names_that_transformers_may_change_are_left_to_loading() -> None:
    check_weights(NOWHERE, torch.nn.Linear(2, 3), {"experts.0.weight": (3, 2), "bias": (3,)})


@pytest.mark.parametrize(
    ("config", "message"),
    [(MambaConfig(), "is a mamba model"), (ViTConfig(), "describes no language model")],
)
def test_models_that_cannot_be_trained(config: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        outline(NOWHERE, config)


def test_a_token_beyond_the_vocabulary() -> None:
    model = build("llama")
    check_vocabulary(model, [0, 95], "there")
    with pytest.raises(ModelError, match=r"gives token id 96 and the model knows only 96"):
        check_vocabulary(model, [0, 96], "there")
