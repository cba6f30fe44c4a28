"""Pages say what the code does: every name in them is one that it has."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roost.cli.main import COMMANDS, build_parser
from roost.config import RunConfig
from roost.config.description import settable_names
from roost.config.loading import parse_overrides
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.fleet import ServerEngine
from roost.engines.vllm.member import Member
from roost.engines.vllm.server.addresses import Address
from roost.model.policy import Policy
from roost.rewards.builtin import BUILTINS
from roost.run.batches import Batch
from roost.run.metrics import read_metrics
from support.recorded_port import RecordedPort
from support.served_port import ServedPort
from support.small_models import build
from support.tiny_runs import TinyRun, train_tiny

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FIGURES = ("docs/hardware-guide.md", "docs/plan.md", "docs/doctor.md")
"""Pages whose dotted names are also figures of a plan or facts of a machine."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
SECTIONS = {name.partition(".")[0] for name in settable_names() if "." in name}

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text()) if kind == language]


def spans(text: str) -> list[str]:
    """What stands in code letters."""
    return re.findall(r"`([^`\n]+)`", text)


def first_cells(page: Path, header: str) -> list[str]:
    """The names in the first column of the tables whose first column is called so."""
    names: list[str] = []
    inside = False
    for line in prose(page).splitlines():
        if not line.startswith("|"):
            inside = False
        elif re.match(rf"\| {header} \|", line):
            inside = True
        elif inside:
            names += spans(line.split(" | ")[0])
    return names


class Spot:
    """A server's place."""

    def __init__(self, served: ServedPort) -> None:
        self.served = served

    def address(self) -> Address:
        return self.served.address

    def lost(self) -> None: ...

    def proved_useful(self) -> None: ...

    def close(self) -> None:
        self.served.close()


def sync_metrics() -> set[str]:
    """What a sync of servers writes, of a recorded one here."""
    policy = Policy(build("llama"))

    def make(port: Any) -> VllmEngine:
        return VllmEngine(policy, None, port, probe=[5, 6, 7], cache_bytes=7)

    spot = Spot(ServedPort(RecordedPort(policy)))
    engine = ServerEngine(policy, None, [Member(spot, make)], patience_s=5.0)
    try:
        return set(engine.sync())
    finally:
        engine.close()


SOUR = "def sour(completions):\n    raise ValueError('no')\n"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every metric that is written: of a step with KL, correction and a reward that fails, and of a
    sync."""
    base = tmp_path_factory.mktemp("docs")
    (base / "r.py").write_text(SOUR)
    sections = {
        "model": {"dtype": "bfloat16"},
        "loss": {"beta": 0.1},
        "correction": "truncate",
        "rewards": ["numeric", "r.py:sour"],
        "train": {"steps": 1},
        "eval": {"prompts": 0},
    }
    run = train_tiny(base / "run", base, sections)
    [row] = read_metrics(run.folder.metrics)
    names = {re.sub(r"(?<=^rewards/)(numeric|sour)(?=/)", "NAME", name) for name in row}
    phases = {
        phase
        for path in (ROOT / "src/roost/run").glob("*.py")
        for phase in re.findall(r'ledger\.phase\("(\w+)"\)', path.read_text())
    }
    # Evaluations are between the steps: they are in the ledger alone.
    assert {"generate", "train", "sync", "sleep", "evaluate"} <= phases
    phases.remove("evaluate")
    timed = {f"time/{phase}_s" for phase in phases}
    peaks = {f"memory/{phase}_peak_bytes" for phase in phases}
    assert {name for name in names if name.startswith(("time/", "memory/"))} <= timed | peaks
    ahead = set(Batch(0, [], [], 1.0).metrics())
    return names | timed | peaks | ahead | sync_metrics()


@by_page
def test_every_metric_on_a_page_is_written(page: Path, written: set[str]) -> None:
    kinds = {name.partition("/")[0] for name in written if "/" in name}
    named = [span for span in spans(prose(page)) if span.partition("/")[0] in kinds and "/" in span]
    metrics = [span for span in named if not (ROOT / "src/roost" / span).exists()]
    unknown = [name for name in metrics if name not in written and not is_group(name, written)]
    assert unknown == []


def is_group(name: str, written: set[str]) -> bool:
    """``sync/...`` is every metric that begins so."""
    return name.endswith("/...") and any(one.startswith(name[:-3]) for one in written)


def test_the_pages_of_runs_and_servers_name_every_metric(written: set[str]) -> None:
    named = first_cells(ROOT / "docs/runs.md", "metric") + first_cells(
        ROOT / "docs/vllm.md", "metric"
    )
    named = [name for name in named if not name.endswith("/...")]
    assert sorted(set(named) - written) == [], "named and not written"
    assert sorted(written - set(named)) == [], "written and not named"


def test_the_page_of_runs_names_every_file(full_run: TinyRun) -> None:
    named = first_cells(ROOT / "docs/runs.md", "file")
    there = {path.name for path in full_run.folder.root.iterdir()} - {".lock"}
    assert {name.split("/")[0] for name in named} == there


@by_page
def test_every_field_on_a_page_is_one(page: Path) -> None:
    known = {*settable_names(), *SECTIONS}
    allowed_more = str(page.relative_to(ROOT)) in FIGURES
    for span in spans(prose(page)):
        match = re.match(r"^([a-z_]+)\.([a-z_.0-9]+)( = .+)?$", span)
        if match is None or match[1] not in SECTIONS or match[2] in ("py", "json"):
            continue
        name = f"{match[1]}.{match[2]}"
        free = any(name.startswith(f"{section}.") for section in ("data.options", "eval.options"))
        assert name in known or free or allowed_more, f"no field {name}"
        if match[3] is not None and name in known:
            RunConfig.model_validate(parse_overrides([span.replace(" = ", "=", 1)]))


@by_page
def test_every_recipe_on_a_page_is_one(page: Path) -> None:
    for text in blocks(page, "toml"):
        recipe = tomllib.loads(text)
        if recipe.keys() != {"cards"}:  # which `roost plan --cards` reads
            RunConfig.model_validate(recipe)


@by_page
def test_every_command_on_a_page_is_one(page: Path) -> None:
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    for line in lines:
        words = shlex.split(line, comments=True)
        if not words or words[0] not in ("roost", ".venv/bin/roost"):
            continue
        assert words[1] in COMMANDS, line
        args, unknown = build_parser([words[1]])[0].parse_known_args(words[1:])
        assert unknown == [], line
        names = [text.partition("=")[0] for text in getattr(args, "overrides", None) or []]
        assert set(names) <= {*settable_names(), *SECTIONS}, line


@by_page
def test_every_override_on_a_page_sets_a_field(page: Path) -> None:
    names = set(re.findall(r"--set ([a-z_.]+)=", page.read_text()))
    assert names <= {*settable_names(), *SECTIONS}


def test_the_commands_of_the_readme_are_all_there_are() -> None:
    commands = first_cells(ROOT / "README.md", "command")
    assert {text.split()[1] for text in commands if text.startswith("roost ")} == set(COMMANDS)
    for text in commands:
        options = set(re.findall(r"(?<=[\[ ])--?[a-zA-Z-]+", text))
        known = set(build_parser(COMMANDS)[1][text.split()[1]]._option_string_actions)
        assert options <= known, text


def test_the_built_in_rewards_are_all_there_are() -> None:
    assert first_cells(ROOT / "docs/rewards.md", "built in") == list(BUILTINS)


def test_trls_names_are_trls() -> None:
    from trl import GRPOConfig

    named = first_cells(ROOT / "docs/from-trl.md", "`GRPOConfig`")
    assert len(named) > 20
    # Arguments of its trainer, not of its configuration.
    config = set(named) - {"reward_funcs"}
    assert config <= {field.name for field in dataclasses.fields(GRPOConfig)}


@by_page
def test_every_link_and_path_on_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in headings(there), target
    for span in spans(prose(page)):
        if re.match(r"^(src|tests|docs|scripts|benchmarks|recipes|examples)/[\w/.-]+$", span):
            assert (ROOT / span).exists(), span
        if match := re.match(r"^([\w/]*test_\w+\.py)(?:::(test_\w+))?$", span):
            found = [*ROOT.rglob(f"tests/**/{Path(match[1]).name}")]
            assert found, span
            assert match[2] is None or f"def {match[2]}(" in found[0].read_text(), span


def headings(page: Path) -> Iterator[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


def test_pages_of_the_plan_are_what_its_commands_print() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "refresh-docs", "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
