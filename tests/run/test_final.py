"""``final/`` of a run: any user of transformers or peft loads it, and it holds what was trained."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from roost.model.source import tiny_model_folder
from roost.run import checkpoint
from support.small_models import reference_logits
from support.tiny_runs import TinyRun

CHAT = [{"role": "user", "content": "12+7="}]


@pytest.fixture(scope="module")
def start() -> Any:
    """The model as it shipped, in transformers' own hands."""
    return AutoModelForCausalLM.from_pretrained(tiny_model_folder(), attn_implementation="eager")


def trained_weights(run: TinyRun) -> dict[str, Tensor]:
    """Of the last step, from its checkpoint."""
    point = checkpoint.load(run.folder.checkpoints)
    assert point.step == 2
    return point.weights


def test_a_trained_model_holds_exactly_the_trained_weights(full_run: TinyRun, start: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(full_run.folder.final)
    loaded, trained = dict(model.named_parameters()), trained_weights(full_run)
    assert loaded.keys() == trained.keys()
    for name, tensor in trained.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name].detach(), tensor)
    before = dict(start.named_parameters())
    assert all(not torch.equal(before[name].detach(), t) for name, t in trained.items())


def test_its_head_is_still_tied(full_run: TinyRun) -> None:
    model = AutoModelForCausalLM.from_pretrained(full_run.folder.final)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert "lm_head.weight" not in load_file(full_run.folder.final / "model.safetensors")


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
def test_its_config_does_not_ask_for_our_attention(full_run: TinyRun, field: str) -> None:
    """Elsewhere nobody has registered it."""
    config = json.loads((full_run.folder.final / "config.json").read_text())
    assert field not in config
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_an_adapter_holds_exactly_the_trained_weights(lora_run: TinyRun, start: Any) -> None:
    base = AutoModelForCausalLM.from_pretrained(tiny_model_folder())
    model = PeftModel.from_pretrained(base, lora_run.folder.final)
    loaded = {n: p.detach() for n, p in model.named_parameters() if "lora_" in n}
    trained = trained_weights(lora_run)
    assert loaded.keys() == trained.keys()
    for name, tensor in trained.items():
        assert torch.equal(loaded[name], tensor)
    assert any(bool(tensor.any()) for name, tensor in trained.items() if "lora_B" in name)
    original = dict(start.named_parameters())
    for name, tensor in model.get_base_model().state_dict().items():
        if "lora_" not in name and name != "lm_head.weight":
            assert torch.equal(tensor, original[name.replace(".base_layer", "")].detach()), name


def test_an_adapter_names_its_base(lora_run: TinyRun) -> None:
    config = json.loads((lora_run.folder.final / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_model_folder())
    assert config["r"] == 16
    assert "lm_head" not in config["target_modules"]


def test_a_merged_adapter_computes_the_same(lora_run: TinyRun, start: Any) -> None:
    base = AutoModelForCausalLM.from_pretrained(tiny_model_folder(), attn_implementation="eager")
    adapted = PeftModel.from_pretrained(base, lora_run.folder.final).eval()
    tokens = [2, 21, 22, 14, 27, 33, 4, 3]
    with_adapter = reference_logits(adapted, tokens)
    assert not torch.allclose(with_adapter, reference_logits(start, tokens), atol=1e-3)
    merged = reference_logits(adapted.merge_and_unload(), tokens)
    torch.testing.assert_close(merged, with_adapter, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["full_run", "lora_run"])
def test_tokenizer_and_chat_template_come_along(kind: str, request: pytest.FixtureRequest) -> None:
    run: TinyRun = request.getfixturevalue(kind)
    ours = AutoTokenizer.from_pretrained(run.folder.final)
    shipped = AutoTokenizer.from_pretrained(tiny_model_folder())
    assert ours.chat_template == shipped.chat_template is not None
    texts = [
        t.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
        for t in (ours, shipped)
    ]
    assert texts[0] == texts[1]
    assert ours(texts[0])["input_ids"] == shipped(texts[0])["input_ids"]
    assert ours.eos_token_id == shipped.eos_token_id


def test_transformers_generates_from_it(full_run: TinyRun) -> None:
    """It ends by itself: the stop token came along in the generation config."""
    model = AutoModelForCausalLM.from_pretrained(full_run.folder.final)
    tokenizer = AutoTokenizer.from_pretrained(full_run.folder.final)
    inputs = tokenizer.apply_chat_template(
        CHAT, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=20, do_sample=False)[0]
    answer = output[inputs["input_ids"].shape[1] :]
    assert int(answer[-1]) == tokenizer.eos_token_id
    assert tokenizer.decode(answer, skip_special_tokens=True).strip().isdigit()
