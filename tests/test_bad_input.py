"""Each mistake gets one clear error: what is wrong by name, what is allowed, and what to do.

The table is in ``support/bad_input``, a module for each thing that people get wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.cli.main import main
from support.bad_input import configs, data, engines, models, plans, rewards, runs
from support.bad_input.case import Case
from support.desk import Desk

MODULES = (models, data, rewards, configs, engines, runs, plans)
TABLE = [
    pytest.param(case, id=f"{module.__name__.rpartition('.')[2]}-{case.id}")
    for module in MODULES
    for case in module.CASES
]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        assert main(Desk(root, patch, root / "run").train()) == 0
    return root / "run"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, monkeypatch, finished_run)
    yield desk
    desk.clear()


def exit_code(arguments: list[str]) -> int | str | None:
    try:
        return main(arguments)
    except SystemExit as end:  # as argparse ends
        return end.code


@pytest.mark.parametrize("case", TABLE)
def test_one_clear_error(case: Case, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = case.arguments(desk)
    before = desk.files()
    capsys.readouterr()

    assert exit_code(arguments) == 2

    output, error = capsys.readouterr()
    assert output == ""
    first, *more = error.splitlines()
    assert first.startswith("error: ")
    assert all(line.startswith(("  - ", "See `roost")) for line in more), "one message"
    for said in case.says:
        assert said in error, error
    if not case.began:
        assert desk.files() == before, "a run that never began leaves nothing behind"


def test_the_small_run_itself_is_in_order(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(desk.check()) == 0
    assert capsys.readouterr().err == ""
    assert desk.files() == {"recipe.toml"}
