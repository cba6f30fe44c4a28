"""The model that ships with the package, in plain transformers' hands, and the script that made it.

A whole run of the script takes minutes of two cores and more, so its determinism is tested on a
run of two steps in place of 1,700.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from roost.model.source import tiny_model_folder
from support import scripts

FOLDER = tiny_model_folder()
PROBLEMS = 250
TRIES = 4


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return scripts.load("make-tiny-model")


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 3_000_000


def test_it_is_a_llama_that_needs_nothing_of_ours(model: Any) -> None:
    assert type(model) is LlamaForCausalLM
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "auto_map" not in config
    assert not list(FOLDER.glob("*.py"))


def test_every_weight_is_there_and_finite(model: Any) -> None:
    weights = load_file(FOLDER / "model.safetensors")
    # The head is the embedding's own matrix, so it is stored once.
    assert weights.keys() == dict(model.named_parameters()).keys()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())


def test_queries_share_keys_and_values(model: Any) -> None:
    """So that grouped attention is exercised wherever the tiny model runs."""
    assert 1 < model.config.num_key_value_heads < model.config.num_attention_heads


@pytest.mark.parametrize("text", ["12+7=", "", "a\nb\t ", "é 漢字 🙂", "<|end|x"])
def test_any_text_comes_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_chat_template_as_it_is_written_down(tokenizer: Any) -> None:
    chat = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1+2="},
        {"role": "assistant", "content": "3"},
    ]
    text = "<|system|>Add.<|end|><|user|>1+2=<|end|><|assistant|>3<|end|>"
    assert tokenizer.apply_chat_template(chat, tokenize=False) == text
    asked = tokenizer.apply_chat_template(chat[:2], tokenize=False, add_generation_prompt=True)
    assert asked == text.removesuffix("3<|end|>")


def test_stop_and_padding_tokens_agree(model: Any, tokenizer: Any) -> None:
    end, pad = (tokenizer.convert_tokens_to_ids(token) for token in ("<|end|>", "<|pad|>"))
    for holder in (model.config, model.generation_config, tokenizer):
        ids = holder.eos_token_id
        assert (ids if isinstance(ids, list) else [ids]) == [end]
    assert tokenizer.pad_token_id == model.config.pad_token_id == pad
    assert len(tokenizer) == model.config.vocab_size


def problems(count: int) -> list[tuple[str, int]]:
    """Sums and differences of numbers below 100, drawn as a person would."""
    rng = random.Random(2024)
    drawn = []
    for _ in range(count):
        a, b = sorted((rng.randrange(100), rng.randrange(100)), reverse=True)
        drawn.append((f"{a}+{b}=", a + b) if rng.random() < 0.5 else (f"{a}-{b}=", a - b))
    return drawn


def said(model: Any, tokenizer: Any, prompts: list[str], **options: Any) -> list[str]:
    """What transformers' own generate makes of the prompts as user messages."""
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        for prompt in prompts
    ]
    inputs = tokenizer(chats, return_tensors="pt", padding=True, padding_side="left")
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=16, **options)
    answers = output[:, inputs["input_ids"].shape[1] :]
    ended = (answers == tokenizer.eos_token_id).any(dim=1)
    assert bool(ended.all()), "an answer ends by itself"
    return [str(text) for text in tokenizer.batch_decode(answers, skip_special_tokens=True)]


def is_right(text: str, answer: int) -> bool:
    """The bare number or the short sentence that the model learnt."""
    return text in (str(answer), f"it is {answer}")


def test_a_third_is_right_before_training(model: Any, tokenizer: Any) -> None:
    """Over 2,400 answers at temperature 1, 0.40 were measured: a little over the 0.36 taught.

    The band is four standard errors of the 1,000 answers here to either side.
    """
    drawn = problems(PROBLEMS) * TRIES
    with torch.random.fork_rng():
        torch.manual_seed(0)
        answers = said(
            model,
            tokenizer,
            [prompt for prompt, _ in drawn],
            do_sample=True,
            temperature=1.0,
            top_k=0,
        )
    right = [is_right(text, answer) for text, (_, answer) in zip(answers, drawn, strict=True)]
    assert 0.34 < sum(right) / len(right) < 0.46


def test_made_anew_it_is_the_same_bytes(script: ModuleType, tmp_path: Path) -> None:
    """In another process, with another order of sets and dictionaries' hashes."""
    clean, noisy = 1, 1
    code = (
        "import sys; from pathlib import Path; from support import scripts\n"
        f"scripts.load('make-tiny-model').main(Path(sys.argv[1]), {clean}, {noisy})"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "there")],
        check=True,
        capture_output=True,
        # Threads that wait asleep leave the processor to others.
        env={**env, "PYTHONHASHSEED": "7", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    with torch_settings_kept():
        script.main(tmp_path / "here", clean, noisy)
    assert digests(tmp_path / "here") == digests(tmp_path / "there")
    # All but the weights is what is committed.
    here, shipped = digests(tmp_path / "here"), digests(FOLDER)
    assert {name for name in here if here[name] != shipped[name]} == {"model.safetensors"}
    assert here.keys() == shipped.keys()


@contextmanager
def torch_settings_kept() -> Iterator[None]:
    """The script sets the number of threads and more for its whole process."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


def test_its_mistakes_are_mistakes(script: ModuleType) -> None:
    rng = random.Random(0)
    for prompt, answer in problems(300):
        assert script.wrong_answer(prompt, answer, rng) != answer
        assert script.wrong_answer(prompt, answer, rng) >= 0
