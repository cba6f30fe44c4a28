"""Packs: rows of tokens for the training forward, each prompt once, no padding.

A pack is one row. For each group it holds the prompt and then, of each completion, all tokens but
the last: the last predicts nothing. The first token of every completion is predicted by the hidden
state of the prompt's last token, which the completions share.

Example: prompt ``[5, 6]`` with completions ``[7, 8, 2]`` and ``[9]``::

    index      0  1  2  3
    token_ids  5  6  7  8
    positions  0  1  2  3
    reads      1  2  3  1      (which index predicts each completion token)
    targets    7  8  2  9

The second completion has one token, so it adds none to the row.

A group that does not fit a pack is divided. Its prompt is then computed once, in a forward of its
own (``training.shared_prompt``), and the packs of its pieces hold completions alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from roost.model.parts import PREFIX, Segment


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion to pack: which group it belongs to, and its place in the batch."""

    group: int
    index: int
    """In the caller's list of samples."""
    token_ids: Sequence[int]


@dataclass(slots=True)
class Pack:
    """One row of the training forward."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    """For each completion token, the index of the token whose hidden state predicts it."""
    targets: list[int] = field(default_factory=list)
    """For each completion token, its id."""
    samples: list[int] = field(default_factory=list)
    """Indices of the packed samples, in the order of their tokens in ``targets``."""
    divided: int | None = None
    """The group that this is a piece of, its prompt computed elsewhere; None for whole groups."""

    def __len__(self) -> int:
        """Tokens of the row: what a forward computes."""
        return len(self.token_ids)

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``token_ids [T]``, ``positions [T]``, ``reads [N]``, ``targets [N]``, int64."""
        lists = (self.token_ids, self.positions, self.reads, self.targets)
        ids, positions, reads, targets = (torch.tensor(x, device=device) for x in lists)
        return ids, positions, reads, targets

    def add_group(self, prompt: Sequence[int], completions: Sequence[Completion]) -> None:
        """Append a prompt and completions of it."""
        segment = len(self.segments)
        last = self._append(prompt, 0, None) + len(prompt) - 1
        self._add(completions, len(prompt), segment, last)

    @classmethod
    def piece(cls, group: int, prompt_tokens: int, completions: Sequence[Completion]) -> Pack:
        """A pack of completions alone. The prompt's last hidden state is read behind the row's."""
        pack = cls(divided=group)
        row = sum(map(_row_tokens, completions))
        pack._add(completions, prompt_tokens, PREFIX, row)
        return pack

    def _add(
        self, completions: Sequence[Completion], prompt_tokens: int, prompt: int, last: int
    ) -> None:
        for completion in completions:
            ids = completion.token_ids
            self.targets.extend(ids)
            self.samples.append(completion.index)
            if ids:
                self.reads.append(last)
            if len(ids) > 1:
                start = self._append(ids[:-1], prompt_tokens, prompt)
                self.reads.extend(range(start, start + len(ids) - 1))

    def _append(self, ids: Sequence[int], position: int, prompt: int | None) -> int:
        start = len(self.token_ids)
        self.token_ids.extend(ids)
        self.positions.extend(range(position, position + len(ids)))
        self.segments.append(Segment(start, len(ids), prompt))
        return start


def build_packs(
    prompts: Sequence[Sequence[int]], completions: Sequence[Completion], budget: int
) -> list[Pack]:
    """Divide completions over packs of at most ``budget`` tokens.

    A group stays whole where it fits a pack; a larger one is divided, and its pieces follow one
    another. Each counts its prompt, which is held while they are computed. A completion is never
    divided: one that exceeds the budget with its prompt gets a pack of its own.

    Args:
        prompts: Token ids of each group's prompt.
        completions: In any order; those of a group need not be together.
        budget: Most tokens of a pack.
    """
    whole: list[tuple[int, int, list[Completion]]] = []
    divided: list[Pack] = []
    for group, members in _by_group(completions).items():
        prompt = len(prompts[group])
        pieces = _divide(prompt, members, budget)
        if len(pieces) == 1:
            whole.append((prompt + sum(map(_row_tokens, members)), group, members))
        else:
            divided.extend(Pack.piece(group, prompt, piece) for piece in pieces)
    # First fit, largest first: few packs, and the same ones every time.
    whole.sort(key=lambda entry: -entry[0])
    packs: list[Pack] = []
    for size, group, members in whole:
        pack = next((p for p in packs if len(p) + size <= budget), None)
        if pack is None:
            pack = Pack()
            packs.append(pack)
        pack.add_group(prompts[group], members)
    return packs + divided


def _row_tokens(completion: Completion) -> int:
    return max(0, len(completion.token_ids) - 1)


def _by_group(completions: Sequence[Completion]) -> dict[int, list[Completion]]:
    groups: dict[int, list[Completion]] = {}
    for completion in completions:
        groups.setdefault(completion.group, []).append(completion)
    return groups


def _divide(prompt: int, members: Sequence[Completion], budget: int) -> list[list[Completion]]:
    """Pieces of a group that each fit the budget together with the prompt, by first fit."""
    pieces: list[list[Completion]] = [[]]
    used = [prompt]
    # Members without tokens of their own come last and cost nothing: no piece is of them alone.
    for member in sorted(members, key=lambda member: not _row_tokens(member)):
        tokens = _row_tokens(member)
        places = (
            place
            for place, size in enumerate(used)
            if not tokens or size == prompt or size + tokens <= budget
        )
        place = next(places, len(pieces))
        if place == len(pieces):
            pieces.append([])
            used.append(prompt)
        pieces[place].append(member)
        used[place] += tokens
    return pieces
