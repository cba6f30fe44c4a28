from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from roost.errors import CheckpointError
from roost.run.metrics import MetricsLog, read_metrics


def test_rows_come_back(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl")
    log.append({"step": 1, "reward": 0.5})
    log.append({"step": 2, "reward": math.nan})
    assert read_metrics(tmp_path / "m.jsonl") == [
        {"step": 1, "reward": 0.5},
        {"step": 2, "reward": None},
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_line_is_json_to_any_reader(tmp_path: Path, value: float) -> None:
    """A gradient may be infinite, for which JSON has no word and Python's own reader has."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    path = tmp_path / "m.jsonl"
    MetricsLog(path).append({"step": 1, "grad_norm": value})
    assert json.loads(path.read_text(), parse_constant=refuse) == {"step": 1, "grad_norm": None}


def test_a_kill_while_resume_rewrites_the_file_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.jsonl"
    log = MetricsLog(path)
    for step in (1, 2, 3):
        log.append({"step": step})
    rows, write_text = path.read_text(), Path.write_text

    def killed(self: Path, text: str) -> int:
        write_text(self, text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        MetricsLog(path, resume_step=2)
    monkeypatch.undo()
    assert path.read_text() == rows
    MetricsLog(path, resume_step=2)
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]


def test_a_disk_that_fills_up_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"m\.jsonl' cannot be written: .*--resume"):
        MetricsLog(tmp_path / "gone" / "m.jsonl").append({"step": 1})


def test_resume_drops_later_rows_and_a_half_written_one(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    MetricsLog(path, resume_step=2).append({"step": 3, "new": 1})
    assert read_metrics(path) == [{"step": 1}, {"step": 2}, {"step": 3, "new": 1}]


def test_no_file_is_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none.jsonl") == []
