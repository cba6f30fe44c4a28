"""The result of a comparison as text: a table, the ratios, who is missing and why, the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roost.bench.tables import settings_lines, table

_GIB = 2**30


def lines_of(result: Mapping[str, Any], titles: Mapping[str, str]) -> list[str]:
    """A comparison for a person.

    Args:
        result: What ``compare`` returned.
        titles: What each name stands for.
    """
    lines = [_headline(result), "", table([_columns(row, result) for row in result["rows"]])]
    if result["ratios"]:
        lines += ["", table([_ratio(name, r) for name, r in result["ratios"].items()])]
        lines += [
            "time: the rival's over Roost's, of a step and for each completion token (sampled",
            "lengths differ); memory: Roost's over the rival's.",
        ]
    if "floor_share" in result:
        lines += ["", f"Roost's share of the floor: {result['floor_share']:.0%}"]
    lines += [
        *(f"{name} has no row: it {reason}" for name, reason in result["failed"].items()),
        *(
            f"{name} has no row: it is not installed. {'; '.join(install)}"
            for name, install in result["not_installed"].items()
        ),
        "",
        *(f"{row['name']} is {titles[row['name']]}" for row in result["rows"]),
        "",
        *settings_lines(result["settings"]),
    ]
    return lines


def _headline(result: Mapping[str, Any]) -> str:
    workload = result["workload"]
    what = f"{result['method']} training" if result["method"] else "generation"
    return (
        f"{result['model']}, {what}: {workload['prompts']} prompts of up to "
        f"{workload['prompt_tokens']} tokens x {workload['generations']} completions of up to "
        f"{workload['completion_tokens']}; medians of {result['steps']} steps in turns, "
        f"{result['threads']} threads"
    )


def _columns(row: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, object]:
    columns: dict[str, object] = {"what": row["name"], "step s": row["step_s"]}
    if result["kind"] == "step":
        columns |= {
            "generate s": row["generate_s"],
            "rewards s": row["reward_s"],
            "train s": row["train_s"],
        }
        if any(other["sync_s"] for other in result["rows"]):
            columns |= {"of it sync s": row["sync_s"], "of that proof s": row["proof_s"]}
    columns |= {
        "completion tokens": round(row["generated_tokens"]),
        "generated tokens/s": round(row["generated_tokens_per_s"]),
    }
    if result["kind"] == "step":
        columns["trained tokens/s"] = round(row["trained_tokens_per_s"])
    columns["peak GiB"] = row["peak_bytes"] / _GIB
    if "floor_share" in row:
        columns["share of the floor"] = row["floor_share"]
    return columns


def _ratio(name: str, ratio: Mapping[str, float]) -> dict[str, object]:
    return {
        "against": name,
        "step time": ratio["step"],
        "time a token": ratio["step_per_token"],
        "memory": ratio["peak"],
    }
