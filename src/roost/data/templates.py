"""Prompts to token ids, once: chat templates, system prompts, and never two beginnings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roost.config import DataConfig
from roost.errors import DataError
from roost.samples import Messages


class ChatFormatter:
    """Encodes the prompt of a row with a tokenizer's chat template, or as plain text.

    Args:
        tokenizer: A transformers tokenizer.
        config: ``data``: the template, its options, the system prompt.

    Raises:
        DataError: a chat is asked for and there is no template.
    """

    def __init__(self, tokenizer: Any, config: DataConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        template = config.chat_template or tokenizer.chat_template
        if config.chat_template is not None:
            path = Path(config.chat_template).expanduser()
            if len(config.chat_template) < 4096 and path.is_file():
                template = path.read_text(encoding="utf-8")
        self._template: str | None = template
        if config.chat == "always" and template is None:
            raise DataError(
                "data.chat = 'always': the tokenizer has no chat template. Set data.chat_template, "
                "or data.chat = 'never'."
            )

    @property
    def wraps_text(self) -> bool:
        """Whether a prompt that is text becomes a user message."""
        return self._config.chat != "never" and self._template is not None

    def encode(self, content: str | Messages, row: int) -> tuple[int, ...]:
        """Token ids of a prompt.

        Args:
            content: Text or chat messages.
            row: For messages about it.

        Raises:
            DataError: the messages are malformed, the template refuses them, or nothing is left.
        """
        if isinstance(content, str) and not self.wraps_text:
            if self._config.system_prompt is not None:
                content = f"{self._config.system_prompt}\n\n{content}"
            ids: Sequence[int] = self._tokenizer(content)["input_ids"]
        else:
            ids = self._encode_messages(self._messages(content), row)
        if not ids:
            raise DataError(f"row {row:,}: the prompt {content!r} has no tokens.")
        return tuple(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def _messages(self, content: str | Messages) -> Messages:
        messages = (
            [{"role": "user", "content": content}] if isinstance(content, str) else list(content)
        )
        if self._config.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self._config.system_prompt})
        return messages

    def _encode_messages(self, messages: Messages, row: int) -> Sequence[int]:
        if self._template is None:
            raise DataError(
                f"row {row:,} holds chat messages and the tokenizer has no chat template. Set "
                "data.chat_template, or give prompts as text."
            )
        # The template writes the beginning token itself, so the tokenizer must not add another.
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=messages[-1]["role"] != "assistant",
                continue_final_message=messages[-1]["role"] == "assistant",
                **self._config.template_options,
            )
        except Exception as error:
            raise DataError(
                f"row {row:,}: the chat template refuses its messages: {error}"
            ) from error
        ids: Sequence[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def check_messages(content: Any, row: int, column: str) -> str | Messages:
    """A prompt as it should be: text, or messages with a role and content each.

    Raises:
        DataError: it is neither.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)) or not content:
        raise DataError(
            f"row {row:,}: column {column!r} is a {type(content).__name__}; it should be text or "
            "a list of chat messages."
        )
    for message in content:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise DataError(
                f"row {row:,}: a chat message should have 'role' and 'content'; this is "
                f"{message!r}."
            )
    return [dict(message) for message in content]
