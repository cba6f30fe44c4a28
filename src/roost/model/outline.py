"""A model without memory: its modules and shapes on the meta device, to check before loading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from roost.errors import ModelError
from roost.model.source import ModelSource


def outline(source: ModelSource, config: Any) -> nn.Module:
    """The model that a configuration describes, every tensor on the meta device.

    Raises:
        ModelError: it is not a causal language model, does not take transformers' attention
            interface, or its sizes contradict each other.
    """
    try:
        with torch.device("meta"):
            model: nn.Module = AutoModelForCausalLM.from_config(
                config, trust_remote_code=source.trust_remote_code
            )
    except Exception as error:
        raise ModelError(
            f"model.path = '{source.location}': its config.json describes no language model that "
            f"transformers can build: {_first_line(error)}. Choose a decoder-only language model."
        ) from error
    if not getattr(model, "_supports_attention_backend", False):
        raise ModelError(
            f"model.path = '{source.location}' is a {config.model_type} model, whose layers do not "
            "take transformers' attention interface, which Roost needs. Choose a decoder-only "
            "transformer such as Llama, Qwen, Gemma or Mistral."
        )
    return model


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300].rstrip(". ")


def check_weights(
    source: ModelSource, model: nn.Module, found: Mapping[str, tuple[int, ...]]
) -> None:
    """Compare a model's outline with what its weight files say they hold.

    Args:
        source: Whose files they are, for messages.
        model: From ``outline``.
        found: From ``source.weight_shapes``.

    Raises:
        ModelError: tensors are missing or of another shape; the first is named.
    """
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    wrong = sorted(name for name in wanted if name in found and found[name] != wanted[name])
    if wrong:
        first = wrong[0]
        raise other_shapes(source.location, len(wrong), first, found[first], wanted[first])
    missing = sorted(wanted.keys() - found.keys())
    # Files of some models (experts one by one, an older naming) have names that transformers
    # changes as it loads; what is missing then is found out by loading.
    renamed = found.keys() - model.state_dict().keys()
    if missing and not renamed:
        raise lacks_tensors(source.location, missing)


def lacks_tensors(location: str, missing: Sequence[str]) -> ModelError:
    """The error about tensors that are not in the files."""
    return ModelError(
        f"model.path = '{location}': its weights lack {len(missing)} tensors that its config.json "
        f"asks for, the first {missing[0]!r}: they would be random numbers. Use the config.json "
        "that belongs to the weights, or download the model again."
    )


def other_shapes(
    location: str, count: int, name: str, found: Sequence[int], wanted: Sequence[int]
) -> ModelError:
    """The error about tensors of another shape."""
    return ModelError(
        f"model.path = '{location}': {count} of its weights have another shape than its "
        f"config.json asks for, the first {name!r}: {tuple(found)} instead of {tuple(wanted)}. Use "
        "the config.json that belongs to the weights, or download the model again."
    )


def check_vocabulary(model: nn.Module, token_ids: Sequence[int], tokenizer: str) -> None:
    """Say that a tokenizer belongs to another model.

    Args:
        model: From ``outline``.
        token_ids: Ids that the run feeds to the model.
        tokenizer: Where the tokenizer is, for the message.

    Raises:
        ModelError: an id lies outside of the embedding.
    """
    rows = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    largest = max(token_ids)
    if largest >= rows:
        raise ModelError(
            f"the tokenizer of '{tokenizer}' gives token id {largest:,} and the model knows only "
            f"{rows:,}: they do not belong together. Set model.tokenizer to the model's own."
        )
