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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from roost.model.parts import Segment


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
        prompt_segment = len(self.segments)
        last = self._append(prompt, 0, None) + len(prompt) - 1
        for completion in completions:
            ids = completion.token_ids
            self.targets.extend(ids)
            self.samples.append(completion.index)
            if ids:
                self.reads.append(last)
            if len(ids) > 1:
                start = self._append(ids[:-1], len(prompt), prompt_segment)
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

    A group stays whole where it fits a pack; a larger one is divided, and its prompt repeated in
    each pack that holds some of it. A completion is never divided: one that exceeds the budget with
    its prompt gets a pack of its own.

    Args:
        prompts: Token ids of each group's prompt.
        completions: In any order; those of a group need not be together.
        budget: Most tokens of a pack.
    """
    pieces = [
        (group, piece)
        for group, members in _by_group(completions).items()
        for piece in _divide(len(prompts[group]), members, budget)
    ]
    sizes = {
        id(piece): len(prompts[group]) + sum(map(_row_tokens, piece)) for group, piece in pieces
    }
    # First fit, largest first: few packs, and the same ones every time.
    pieces.sort(key=lambda entry: -sizes[id(entry[1])])
    packs: list[Pack] = []
    for group, piece in pieces:
        size = sizes[id(piece)]
        pack = next((p for p in packs if len(p) + size <= budget), None)
        if pack is None:
            pack = Pack()
            packs.append(pack)
        pack.add_group(prompts[group], piece)
    return packs


def _row_tokens(completion: Completion) -> int:
    return max(0, len(completion.token_ids) - 1)


def _by_group(completions: Sequence[Completion]) -> dict[int, list[Completion]]:
    groups: dict[int, list[Completion]] = {}
    for completion in completions:
        groups.setdefault(completion.group, []).append(completion)
    return groups


def _divide(prompt: int, members: Sequence[Completion], budget: int) -> list[list[Completion]]:
    """Pieces of a group that each fit the budget together with the prompt.

    First fit: a member that begins a piece fits no piece before it, so no two pieces fit one pack
    and the prompt never stands in a pack twice.
    """
    pieces: list[list[Completion]] = []
    used: list[int] = []
    for member in members:
        tokens = _row_tokens(member)
        # A member without tokens of its own costs nothing, even where the budget is exceeded.
        fits = (i for i, size in enumerate(used) if not tokens or size + tokens <= budget)
        place = next(fits, len(pieces))
        if place == len(pieces):
            pieces.append([])
            used.append(prompt)
        pieces[place].append(member)
        used[place] += tokens
    return pieces
