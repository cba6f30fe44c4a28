"""A resume on another torch, or with other threads, is said and kept; it is never refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from roost.run.display import QuietDisplay
from roost.run.folder import RunFolder, write_json
from roost.run.launch import PythonObjects, check_resume, resume_run
from support.tiny_runs import TinyRun, train_tiny


@pytest.fixture
def folder(full_run: TinyRun, tmp_path: Path) -> RunFolder:
    shutil.copytree(full_run.folder.root, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def read(folder: RunFolder) -> dict[str, Any]:
    environment: dict[str, Any] = json.loads(folder.environment.read_text())
    return environment


def change(folder: RunFolder, **fields: Any) -> None:
    write_json(folder.environment, read(folder) | fields)


def resume(folder: RunFolder, steps: int) -> list[str]:
    display = QuietDisplay()
    overrides = [f"train.steps={steps}", "eval.prompts=6"]
    resume_run(folder.root, display, objects=PythonObjects(), overrides=overrides)
    return [line for line in display.lines if line.startswith("warning: resumed")]


def test_the_same_place_is_not_worth_a_word(folder: RunFolder) -> None:
    before = read(folder)
    assert resume(folder, 3) == []
    assert read(folder) == before


def test_other_threads_and_another_torch_are_said_once_and_kept(folder: RunFolder) -> None:
    packages = read(folder)["packages"] | {"torch": "2.0.0"}
    change(folder, threads=99, packages=packages)
    threads, version = torch.get_num_threads(), packages_now(folder)["torch"]

    assert resume(folder, 3) == [
        f"warning: resumed elsewhere: threads 99, now {threads}, torch 2.0.0, now {version}; "
        "last bits may differ from a run that was never stopped"
    ]
    [entry] = read(folder)["resumed"]
    assert entry["after_step"] == 2
    assert entry["changed"] == {"threads": [99, threads], "torch": ["2.0.0", version]}
    assert read(folder)["threads"] == 99, "where it started stays"

    assert resume(folder, 4) == []
    assert read(folder)["resumed"] == [entry]


def test_every_move_is_kept(folder: RunFolder) -> None:
    threads = torch.get_num_threads()
    first = {"after_step": 1, "at": "before", "changed": {"threads": [threads, 7]}}
    change(folder, resumed=[first])
    assert len(resume(folder, 3)) == 1
    assert [entry["changed"]["threads"] for entry in read(folder)["resumed"]] == [
        [threads, 7],
        [7, threads],
    ]


def test_what_an_older_version_did_not_write_is_not_a_difference(folder: RunFolder) -> None:
    environment = read(folder)
    del environment["instructions"], environment["packages"]
    write_json(folder.environment, environment)
    assert resume(folder, 3) == []


def test_a_dry_run_says_it_and_writes_nothing(folder: RunFolder) -> None:
    change(folder, threads=99)
    before, display = read(folder), QuietDisplay()
    check_resume(folder, display, objects=PythonObjects())
    assert any("resumed elsewhere: threads 99" in line for line in display.lines)
    assert read(folder) == before


def test_a_reward_that_was_edited_is_said_once_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def size(completions):\n    return [float(len(c)) for c in completions]\n")
    sections = {"rewards": {"functions": ["mine.py:size"]}}
    folder = train_tiny(tmp_path / "run", tmp_path, sections).folder
    first = read(folder)["rewards"]["size"]
    assert resume(folder, 3) == []

    file.write_text(file.read_text().replace("len(c)", "2 * len(c)"))
    assert resume(folder, 4) == [
        "warning: resumed with other code of reward size: what comes now is scored by the new one"
    ]
    [entry] = read(folder)["resumed"]
    assert entry["after_step"] == 3
    assert list(entry["changed"]) == ["reward size"]
    assert entry["changed"]["reward size"][0] == first

    assert resume(folder, 5) == []


def packages_now(folder: RunFolder) -> dict[str, str]:
    from roost.run.environment import describe

    packages: dict[str, str] = describe(0, torch.device("cpu"), "", folder.root)["packages"]
    return packages
