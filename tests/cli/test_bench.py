"""``roost bench``: what it refuses, and each measurement whole, on the shipped model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

from roost.cli.main import main

SMALL = ("--model", "tiny", "--steps", "1", "--threads", "1", "--json")


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", *arguments, *SMALL]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["genrate"], "Did you mean 'generate'?"),
        (["--workload", "shrt"], "Did you mean 'short'?"),
        (["--method", "lra"], "Did you mean 'lora'?"),
        (["--rivals", "trl-bf6"], "Did you mean 'trl-bf16'?"),
        (["--sequences", "8"], "--sequences is an option of `roost bench generate`"),
        (["generate", "--workload", "short"], "of `roost bench step` and `roost bench train`"),
        (["generate", "--sequences", "12"], "--sequences 12: give a multiple of 8"),
        (["--steps", "0"], "--steps 0: give a number above 0"),
        (["--deadline", "inf"], "--deadline inf: give a number above 0"),
        (["--generations", "1"], "--generations 1"),
        (["growth", "--longest", "9"], "--longest 9: the first point is 64"),
        (["--model", "no/such/folder/here"], "no such folder"),
        (
            ["generate", "--model", "tiny", "--tokens", "4000", "--rivals", "none"],
            "exceed the 1024 that 'tiny' takes",
        ),
    ],
)
def test_one_clear_error(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    output, error = capsys.readouterr()
    assert output == ""
    assert error.startswith("error: ")
    assert says in error


@pytest.mark.slow
def test_steps_beside_trl(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(
        capsys, "--rivals", "trl,trl-vllm", "--prompts", "2", "--generations", "4"
    )  # fmt: skip

    rows = {row["name"]: row for row in result["rows"]}
    assert "trl-vllm" in {**result["not_installed"], **result["failed"]}
    assert list(rows) == ["roost", "trl"]
    for row in rows.values():
        parts = row["generate_s"] + row["reward_s"] + row["train_s"]
        assert row["step_s"] == pytest.approx(parts)
        assert row["completions"] == 8
        assert row["generated_tokens"] >= 8
        assert row["peak_bytes"] > 100e6, "it has loaded torch"
    ratio = rows["trl"]["step_s"] / rows["roost"]["step_s"]
    assert result["ratios"]["trl"]["step"] == pytest.approx(ratio)
    assert result["settings"]["trl"]["threads"] == result["settings"]["roost"]["threads"] == 1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="runs where vLLM is installed")
def test_steps_with_a_server_that_samples_ahead(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(capsys, "--rivals", "roost-ahead", "--prompts", "2", "--generations", "4")

    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == ["roost", "roost-ahead"], result["failed"]
    ours, theirs = rows["roost"], rows["roost-ahead"]
    assert ours["sync_s"] == ours["proof_s"] == 0
    assert 0 < theirs["proof_s"] < theirs["sync_s"] < theirs["train_s"]
    assert result["settings"]["roost-ahead"]["staleness"] == 1


@pytest.mark.slow
def test_generation_beside_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(
        capsys, "generate", "--sequences", "8", "--tokens", "8",
        "--rivals", "transformers,transformers-cb",
    )  # fmt: skip

    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == ["roost", "transformers", "transformers-cb", "floor"]
    assert {row["generated_tokens"] for row in rows.values()} == {64}
    assert set(result["ratios"]) == {"transformers", "transformers-cb"}
    share = rows["floor"]["step_s"] / rows["roost"]["step_s"]
    assert result["floor_share"] == pytest.approx(share)


def test_training_beside_its_floor(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(capsys, "train", "--method", "lora")
    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == ["roost", "padded", "floor"]
    # 8 groups of 8, spread evenly from 16 to 128 tokens.
    assert result["completion_tokens"] == 8 * (16 + 32 + 48 + 64 + 80 + 96 + 112 + 128)
    assert result["floor_share"] == pytest.approx(rows["floor"]["step_s"] / rows["roost"]["step_s"])


@pytest.mark.slow
def test_growth(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(capsys, "growth", "--most-completions", "16", "--longest", "64")
    assert [point["x"] for point in result["completions"]] == [8, 16]
    assert [point["x"] for point in result["length"]] == [64]
    assert result["worst_off_line"]["completions"] == pytest.approx(0.0), "two points, one line"
