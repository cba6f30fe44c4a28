"""Prompts to token ids, once: chat templates, system prompts, and never two beginnings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from roost.config import DataConfig
from roost.errors import DataError
from roost.samples import Messages

_SET_BY_ROOST = frozenset(
    {
        "conversation",
        "chat_template",
        "tokenize",
        "add_generation_prompt",
        "continue_final_message",
    }
)


class ChatFormatter:
    """Encodes the prompt of a row with a tokenizer's chat template, or as plain text.

    Args:
        tokenizer: A transformers tokenizer.
        config: ``data``: the template, its options, the system prompt.
        base_dir: Where the relative path of a template starts; the recipe's folder.

    Raises:
        DataError: a chat is asked for and there is no template, or it cannot be read.
    """

    def __init__(self, tokenizer: Any, config: DataConfig, base_dir: Path) -> None:
        self._tokenizer = tokenizer
        self._config = config
        given = config.chat_template
        self._template: str | None = (
            tokenizer.chat_template if given is None else _read_template(given, base_dir)
        )
        for name in config.template_options:
            if name in _SET_BY_ROOST:
                raise DataError(
                    f"data.template_options: {name!r} is set by Roost itself. Take it out; the "
                    "template's own variables go there."
                )
        if config.chat == "always" and self._template is None:
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
            ids = self._tokens(content, row)
        else:
            ids = self._encode_messages(self._messages(content), row)
        if not ids:
            raise DataError(
                f"row {row:,}: the prompt {content!r} has no tokens. Fill or remove it."
            )
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
        except TemplateSyntaxError as error:
            own = self._config.chat_template is not None
            what = "data.chat_template" if own else "the tokenizer's chat template"
            raise DataError(
                f"{what} is not valid Jinja, in its line {error.lineno}: {error.message}. "
                f"{'Mend it.' if own else 'Set data.chat_template to one that is.'}"
            ) from error
        except Exception as error:
            raise DataError(
                f"row {row:,}: the chat template refuses its messages: {error}. Change the "
                "messages, or set data.chat_template."
            ) from error
        return self._tokens(text, row, add_special_tokens=False)

    def _tokens(self, text: str, row: int, **options: Any) -> Sequence[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # JSON can write half of a character's two escapes; no tokenizer takes that.
            raise DataError(
                f"row {row:,}: character {error.start:,} of its prompt, {text[error.start]!a}, is "
                "half of a surrogate pair, which is no text. Mend or remove the row."
            ) from None
        ids: Sequence[int] = self._tokenizer(text, **options)["input_ids"]
        return ids


def _read_template(given: str, base_dir: Path) -> str:
    """``data.chat_template``: the template itself, or the file that it names."""
    if "{" in given:
        return given
    for folder in (base_dir, Path.cwd()):
        path = folder / Path(given).expanduser()
        if path.is_file():
            try:
                return path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"data.chat_template: '{path}' is not UTF-8: {error}.") from None
    raise DataError(
        f"data.chat_template = {given!r}: no such file in '{base_dir.resolve()}', and no Jinja "
        "template either, which would have {{ }} or {% %} in it."
    )


def check_messages(content: Any, row: int, column: str) -> str | Messages:
    """A prompt as it should be: text, or messages with a role and content each.

    Raises:
        DataError: it is neither.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)) or not content:
        raise DataError(
            f"row {row:,}: column {column!r} is of type {type(content).__name__}; it should be "
            "text or a list of chat messages."
        )
    for message in content:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise DataError(
                f"row {row:,}: a chat message should have 'role' and 'content', such as "
                f"{{'role': 'user', 'content': '1+1='}}; this is {message!r}."
            )
    return [dict(message) for message in content]
