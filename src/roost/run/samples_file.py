"""samples/step-N.parquet: every completion with what it was worth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from roost.errors import CheckpointError
from roost.samples import Group, Prompt, Sample


def write(folder: Path, step: int, groups: Sequence[Group]) -> Path:
    """Write the samples of a step, replacing an earlier try at the same step.

    Raises:
        CheckpointError: the disk is full or not writable.
    """
    rows = [_row(step, group.prompt, sample) for group in groups for sample in group.samples]
    target = folder / f"step-{step:06d}.parquet"
    beside = folder / f".{target.name}.part"
    try:
        pq.write_table(pa.Table.from_pylist(rows), beside)
        beside.replace(target)
    except OSError as error:
        raise CheckpointError(
            f"'{target}' cannot be written: {error.strerror or error}. Checkpoints are untouched; "
            "make room and go on with --resume, or set output.samples_every = 0."
        ) from error
    return target


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a samples file."""
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def _row(step: int, prompt: Prompt, sample: Sample) -> dict[str, Any]:
    content = prompt.content
    return {
        "step": step,
        "prompt_id": prompt.id,
        "index": sample.index,
        "prompt": content if isinstance(content, str) else json.dumps(content),
        "completion": sample.text,
        "reward": sample.reward,
        **{f"reward/{name}": value for name, value in sample.rewards.items()},
        "advantage": sample.advantage,
        "finish_reason": str(sample.finish_reason),
        "policy_version": min(sample.policy_versions, default=None),
        "prompt_token_ids": list(prompt.token_ids),
        "completion_token_ids": sample.token_ids,
        "logprobs": sample.logprobs,
        "full_logprobs": sample.full_logprobs,
        "trainer_logprobs": sample.trainer_logprobs,
    }
