"""All prompts of a run, tokenised and checked before step 0."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from roost.config import DataConfig, RunConfig
from roost.data.sources import Row, read_rows
from roost.data.templates import ChatFormatter, check_messages
from roost.errors import DataError, did_you_mean
from roost.samples import Prompt

RESERVED_COLUMNS = frozenset(
    {"completions", "completion", "prompts", "completion_ids", "finish_reasons", "prompt_ids"}
)
"""Names that rewards receive from Roost itself, so a data column cannot have them."""


@dataclass(frozen=True, slots=True)
class PromptReport:
    """What was read, and what was left out, with counts."""

    train: int
    held_out: int
    dropped: int
    """Prompts over the length budget that were left out."""
    truncated: int
    """Prompts over the length budget that lost their first tokens."""
    repeated: int
    """Training prompts left out because they equal a held-out one."""
    budget: int
    """Most tokens a prompt may have."""
    shortest: int
    mean: float
    longest: int

    def line(self) -> str:
        """What there is, for a person."""
        return (
            f"{self.train:,} prompts to train on, {self.held_out:,} held out; "
            f"{self.shortest} to {self.longest} tokens, mean {self.mean:.0f}"
        )

    def losses(self) -> list[str]:
        """What is left out or cut, and why, for a person."""
        lines = []
        if self.dropped:
            lines.append(f"{self.dropped:,} left out: longer than {self.budget:,} tokens")
        if self.truncated:
            lines.append(f"{self.truncated:,} cut to their last {self.budget:,} tokens")
        if self.repeated:
            lines.append(f"{self.repeated:,} left out: the same as a held-out prompt")
        return lines


@dataclass(frozen=True, slots=True)
class PromptSets:
    """The prompts to train on, those held out, and the report about both."""

    train: list[Prompt]
    held_out: list[Prompt]
    report: PromptReport


Track = Callable[[Sequence[Row]], Iterable[Row]]
"""Hands on the rows it is given, one by one, and shows how far it is."""


def load_prompts(
    config: RunConfig,
    tokenizer: Any,
    *,
    context_length: int,
    base_dir: Path | None = None,
    source: Any = None,
    training: bool = True,
    track: Track = iter,
) -> PromptSets:
    """Read, tokenise, check and split the prompts of a run.

    Args:
        config: The run.
        tokenizer: A transformers tokenizer.
        context_length: Most positions of the model.
        base_dir: Where relative paths start.
        source: A Python object in place of ``data.source``.
        training: Whether prompts must be left to train on.
        track: Shows progress over the rows.

    Raises:
        DataError: something is wrong with the data or its length budget, by name.
    """
    budget = prompt_budget(config, context_length)
    formatter = ChatFormatter(tokenizer, config.data, base_dir or Path.cwd())
    encoder = _Encoder(formatter, config.data, budget, track)
    train, held_out = _read_sets(config, encoder, base_dir, source)
    seen = {prompt.token_ids for prompt in held_out}
    kept = [prompt for prompt in train if prompt.token_ids not in seen]
    repeated = len(train) - len(kept)
    _check_some(kept, held_out, encoder)
    if training:
        _check_enough(kept, held_out, config, encoder, repeated=repeated)
    return PromptSets(kept, held_out, _report(kept, held_out, encoder, repeated))


def _read_sets(
    config: RunConfig, encoder: _Encoder, base_dir: Path | None, source: Any
) -> tuple[list[Prompt], list[Prompt]]:
    """Prompts to train on and held-out ones, from two sources or by a split of one."""
    rows = read_rows(
        config.data.source if source is None else source,
        options=config.data.options,
        split=config.data.split,
        limit=config.data.limit,
        base_dir=base_dir,
    )
    prompts = encoder.encode(rows, first_id=0)
    if config.eval.source is None or not config.eval.prompts:
        return _split(prompts, config.eval.prompts, config.seed)
    held_rows = read_rows(
        config.eval.source,
        options=config.eval.options,
        split=config.data.split,
        limit=config.eval.prompts,
        base_dir=base_dir,
        section="eval",
    )
    return prompts, encoder.encode(held_rows, first_id=len(rows))


def _report(
    train: Sequence[Prompt], held_out: Sequence[Prompt], encoder: _Encoder, repeated: int
) -> PromptReport:
    lengths = [len(prompt.token_ids) for prompt in [*train, *held_out]]
    return PromptReport(
        train=len(train),
        held_out=len(held_out),
        dropped=encoder.dropped,
        truncated=encoder.truncated,
        repeated=repeated,
        budget=encoder.budget,
        shortest=min(lengths),
        mean=fmean(lengths),
        longest=max(lengths),
    )


def prompt_budget(config: RunConfig, context_length: int) -> int:
    """Most tokens of a prompt: what is asked, and no more than the context leaves.

    Raises:
        DataError: the completion budget alone fills the context, or both together do not fit.
    """
    completion = config.rollout.max_completion_tokens
    left = context_length - completion
    if left < 1:
        raise DataError(
            f"rollout.max_completion_tokens = {completion:,}: the model's context is "
            f"{context_length:,} tokens, which leaves none for a prompt. Lower it, for "
            f"example to {context_length // 2:,}."
        )
    asked = config.data.max_prompt_tokens
    if asked is not None and asked > left:
        raise DataError(
            f"data.max_prompt_tokens = {asked:,} and rollout.max_completion_tokens = "
            f"{completion:,} exceed the model's context of {context_length:,} tokens. Lower one of "
            "them."
        )
    return left if asked is None else asked


class _Encoder:
    """Rows to prompts within a token budget; counts what did not fit."""

    def __init__(
        self,
        formatter: ChatFormatter,
        config: DataConfig,
        budget: int,
        track: Track,
    ) -> None:
        self._formatter = formatter
        self._config = config
        self.budget = budget
        self._track = track
        self.dropped = 0
        self.shortest_dropped = 0
        self.truncated = 0

    def encode(self, rows: Sequence[Row], first_id: int) -> list[Prompt]:
        prompts = []
        for number, row in enumerate(self._track(rows)):
            prompt = self._encode_row(row, number + 1, first_id + number)
            if prompt is not None:
                prompts.append(prompt)
        return prompts

    def _encode_row(self, row: Row, number: int, prompt_id: int) -> Prompt | None:
        column = self._config.prompt_column
        _check_columns(row, column, number)
        content = check_messages(row[column], number, column)
        ids = self._formatter.encode(content, number)
        if len(ids) > self.budget:
            ids = self._shorten(ids, number)
        if not ids:
            return None
        columns = {name: value for name, value in row.items() if name != column}
        return Prompt(prompt_id, ids, content, columns)

    def _shorten(self, ids: tuple[int, ...], number: int) -> tuple[int, ...]:
        """What ``data.overlong`` leaves of a prompt that is too long."""
        if self._config.overlong == "error":
            raise DataError(
                f"row {number:,}: the prompt has {len(ids):,} tokens and {self.budget:,} fit. Set "
                "data.overlong to 'drop' or 'truncate' to go on without it."
            )
        if self._config.overlong == "truncate":
            self.truncated += 1
            return ids[-self.budget :]
        self.shortest_dropped = min(len(ids), self.shortest_dropped or len(ids))
        self.dropped += 1
        return ()


def _check_columns(row: Row, prompt_column: str, number: int) -> None:
    if prompt_column not in row:
        raise DataError(
            f"row {number:,} has no column {prompt_column!r} (data.prompt_column)."
            f"{did_you_mean(prompt_column, [str(name) for name in row])} Set data.prompt_column to "
            "the column that holds the prompt."
        )
    for name in row:
        if name in RESERVED_COLUMNS:
            raise DataError(
                f"the data has a column {name!r}, which is a name that rewards receive from Roost. "
                f"Rename it; {', '.join(sorted(RESERVED_COLUMNS))} are taken."
            )


def _split(prompts: list[Prompt], held_out: int, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """Hold out a random subset, always the same for a seed."""
    if held_out == 0:
        return prompts, []
    order = list(range(len(prompts)))
    random.Random(f"held out {seed}").shuffle(order)
    chosen = set(order[:held_out])
    return (
        [prompt for i, prompt in enumerate(prompts) if i not in chosen],
        [prompts[i] for i in sorted(chosen)],
    )


def _check_some(train: Sequence[Prompt], held_out: Sequence[Prompt], encoder: _Encoder) -> None:
    if encoder.dropped and not train and not held_out:
        raise DataError(
            f"all {encoder.dropped:,} prompts are longer than {encoder.budget:,} tokens, the "
            f"shortest {encoder.shortest_dropped:,}: raise data.max_prompt_tokens, lower "
            "rollout.max_completion_tokens, or set data.overlong = 'truncate'."
        )


def _check_enough(
    train: Sequence[Prompt],
    held_out: Sequence[Prompt],
    config: RunConfig,
    encoder: _Encoder,
    repeated: int,
) -> None:
    """Say before step 0 that there are fewer prompts than a step takes, and what took them."""
    wanted = config.data.prompts_per_step
    if len(train) >= wanted:
        return
    reasons = []
    if held_out and config.eval.source is None:
        reasons.append(f"{len(held_out):,} are held out by eval.prompts = {config.eval.prompts:,}")
    if encoder.dropped:
        reasons.append(f"{encoder.dropped:,} are longer than {encoder.budget:,} tokens")
    if repeated:
        reasons.append(f"{repeated:,} are the same as a held-out prompt")
    because = f" ({' and '.join(reasons)})" if reasons else ""
    lower = " or eval.prompts" if held_out and config.eval.source is None else ""
    raise DataError(
        f"data.prompts_per_step = {wanted:,}: only {len(train):,} prompts are left to train on"
        f"{because}. Lower data.prompts_per_step{lower}, or give more rows."
    )
