"""When a completion ends: stop tokens and stop strings."""

from __future__ import annotations

from typing import Any

from roost.model.policy import Policy


def stop_token_ids(policy: Policy, tokenizer: Any) -> frozenset[int]:
    """Every token id that the generation configuration and the tokenizer name as an end.

    A model may end its turns with another token than ``tokenizer.eos_token`` (Phi-3.5 with
    ``<|end|>``); its generation configuration then lists both.
    """
    named: list[Any] = [getattr(tokenizer, "eos_token_id", None)]
    for config in (getattr(policy.base, "generation_config", None), policy.config):
        ids = getattr(config, "eos_token_id", None)
        named += ids if isinstance(ids, (list, tuple)) else [ids]
    return frozenset(int(token) for token in named if token is not None)


class StopStrings:
    """Finds stop strings in the tail of a growing completion.

    A stop string of n bytes spans at most n tokens that decode to something, so decoding a few
    more than that after each token finds it, whole multi-token characters included.
    """

    def __init__(self, tokenizer: Any, strings: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._strings = tuple(string for string in strings if string)
        longest = max((len(string.encode()) for string in self._strings), default=0)
        # Room before it, because decoders may drop a space or half a character at the start.
        self._tail = longest + 8

    def found(self, token_ids: list[int]) -> bool:
        """Whether the last token completed a stop string."""
        if not self._strings:
            return False
        tail = token_ids[-self._tail :]
        text = self._tokenizer.decode(
            tail, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return any(string in text for string in self._strings)
