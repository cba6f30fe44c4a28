"""Law 9: what plans and configures a run loads neither torch nor transformers."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "peft", "datasets")
CHECK = f"import sys; print([m for m in {HEAVY!r} if m in sys.modules])"


@pytest.mark.parametrize(
    "first",
    [
        "import roost",
        "import roost.config",
        "import pkgutil, importlib, roost.planner as p\n"
        "for m in pkgutil.walk_packages(p.__path__, 'roost.planner.'):\n"
        "    importlib.import_module(m.name)",
        "import roost.doctor.collect, roost.doctor.checks",
        "from roost.config.description import describe_fields\n"
        "from roost.config.loading import build_config\n"
        "build_config({'model': 'x'}); describe_fields()",
        "import contextlib, io\nfrom roost.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n    assert main(['config']) == 0",
        "import contextlib, io\nfrom roost.cli import main\n"
        "cards = ['--model', 'Qwen3-8B', '--gpu', 'H100', '--gpus', '2']\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n    assert main(['plan', *cards]) == 0",
    ],
)
def test_light(first: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{first}\n{CHECK}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
