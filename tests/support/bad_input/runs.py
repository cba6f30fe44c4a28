"""Run folders: new, resumed, shown, evaluated."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from roost.run.lock import FolderLock
from support.bad_input.case import Arguments, case
from support.desk import SMALL_RUN, Desk


def resumed(change: Callable[[Desk], object], *options: str) -> Arguments:
    def arguments(desk: Desk) -> list[str]:
        desk.run()
        change(desk)
        return ["train", "--resume", "run", "--json", *options]

    return arguments


def untouched(desk: Desk) -> None:
    pass


def file(name: str, content: str) -> Callable[[Desk], object]:
    return lambda desk: desk.write(f"run/{name}", content)


def replaced(old: str, new: str) -> Callable[[Desk], None]:
    def change(desk: Desk) -> None:
        path = desk.root / "run/config.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


def another_model(desk: Desk) -> None:
    weights = desk.weights(desk.model())
    weights["model.norm.weight"][0] += 1e-3
    desk.set_weights("model", weights)
    replaced('path = "tiny"', f'path = "{desk.root}/model"')(desk)


def other_data(desk: Desk) -> None:
    replaced('source = "arithmetic"', f'source = "{desk.root}/data.jsonl"')(desk)
    desk.rows(desk.problems(9))


def flip_a_bit(desk: Desk) -> None:
    path = desk.root / "run/checkpoints/step-2/weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def in_use(desk: Desk) -> None:
    # Undone at the test's end, or the lock would be held until the process ends.
    lock = FolderLock(desk.root / "run")
    desk.after(lock.release)


def new_over_live(desk: Desk) -> list[str]:
    desk.run()
    in_use(desk)
    return desk.train()


def evaluated(change: Callable[[Desk], object]) -> Arguments:
    def arguments(desk: Desk) -> list[str]:
        desk.run()
        change(desk)
        return ["eval", "run", "--json"]

    return arguments


def checked(change: Callable[[Desk], object]) -> Arguments:
    return lambda desk: ["check", *evaluated(change)(desk)[1:]]


ANOTHER_RECIPE = {"rollout": {"temperature": 0.5}}

CASES = [
    case(
        "output-name-too-long",
        lambda desk: desk.check(output={"folder": "a" * 300}),
        "cannot be written: File name too long",
        "--output",
    ),
    case(
        "output-holds-a-run",
        lambda desk: (desk.run(), desk.train())[-1],
        "output.folder = 'run' already holds a run",
        "--resume run",
    ),
    case("output-in-use", new_over_live, "'run' is in use by process", str(os.getpid())),
    case(
        "output-holds-other-files",
        lambda desk: (desk.write("run/thesis.tex", ""), desk.check())[-1],
        "output.folder = 'run' holds other files",
        "Choose an empty or new folder",
    ),
    case(
        "output-is-a-file",
        lambda desk: (desk.write("run", ""), desk.check())[-1],
        "output.folder = 'run' is a file",
    ),
    case(
        "output-below-a-file",
        lambda desk: (desk.write("file", ""), desk.check(output={"folder": "file/run"}))[-1],
        "output.folder = 'file/run' cannot be written",
        "file' is a file",
    ),
    case(
        "output-not-writable",
        lambda desk: desk.train(output={"folder": "/proc/roost/run"}),
        "output.folder = '/proc/roost/run' cannot be written",
        "Choose another folder with --output",
    ),
    case("output-empty", lambda desk: desk.set("output.folder="), "output.folder: is empty"),
    case(
        "disk-full",
        lambda desk: (desk.fill_disk(), desk.train())[-1],
        "output.folder = 'run': 0.00 GB are free",
        "output.keep_checkpoints",
    ),
    case(
        "resume-nothing",
        lambda desk: ["train", "--resume", "absent", "--json"],
        "--resume 'absent': not a run folder (there is no such folder)",
        "`roost train`",
    ),
    case(
        "resume-a-model",
        lambda desk: ["train", "--resume", desk.model(), "--json"],
        "--resume 'model': not a run folder (no config.toml in it)",
    ),
    case(
        "resume-misspelt",
        lambda desk: (desk.run("runs/first"), ["train", "--resume", "runs/frist", "--json"])[-1],
        "--resume 'runs/frist': not a run folder",
        "Did you mean 'runs/first'?",
    ),
    case("resume-in-use", resumed(in_use), "'run' is in use by process", "Wait for it, or stop it"),
    case(
        "resume-with-output",
        resumed(untouched, "--output", "other"),
        "--output and --resume exclude each other",
    ),
    case(
        "resume-with-another-recipe",
        lambda desk: ["train", desk.recipe(ANOTHER_RECIPE), "--resume", desk.run(), "--json"],
        "'run' was made by another recipe",
        "rollout.temperature was 1.0, is 0.5",
        "start a new run",
    ),
    case(
        "resume-with-an-override",
        resumed(untouched, "--set", "seed=1"),
        "seed was 42, is 1",
    ),
    case(
        "resume-with-another-correction",
        resumed(untouched, "--set", "correction=mask"),
        "correction.mode was 'auto', is 'mask'",
    ),
    case(
        "resume-with-another-model",
        resumed(another_model),
        "the checkpoint after step 2 was not made with the model that",
    ),
    case(
        "resume-with-other-data",
        resumed(other_data),
        "the checkpoint after step 2 was not made with the data that",
        "Put it back as it was, or start a new run",
    ),
    case(
        "resume-with-the-model-gone",
        resumed(replaced('path = "tiny"', 'path = "./gone"')),
        "model.path = './gone': no such folder",
    ),
    case(
        "resume-of-another-version",
        resumed(
            file("checkpoints/step-2/manifest.json", '{"format": 99, "roost": "9.0", "files": {}}')
        ),
        "'run/checkpoints/step-2' was written by Roost 9.0 in format 99",
        "Resume with the version that wrote it",
    ),
    case(
        "resume-with-fields-of-another-version",
        resumed(file("config.toml", "[train]\nfrom_the_future = 1\n")),
        "train.from_the_future: no such field",
        "run/config.toml",
    ),
    case(
        "resume-with-a-damaged-checkpoint",
        resumed(flip_a_bit),
        "'run/checkpoints/step-2' is damaged: weights.safetensors does not have the checksum",
        "--from-step 1",
    ),
    case(
        "resume-with-a-damaged-manifest",
        resumed(file("checkpoints/step-2/manifest.json", "[]")),
        "'run/checkpoints/step-2' is damaged: its manifest.json cannot be read",
        "--from-step 1",
    ),
    case(
        "resume-without-an-environment",
        resumed(lambda desk: (desk.root / "run/environment.json").unlink()),
        "'run/environment.json' cannot be read",
    ),
    case(
        "from-step-that-is-not-there",
        resumed(untouched, "--from-step", "7"),
        "no checkpoint of step 7; it holds 1, 2",
    ),
    case(
        "from-step-without-checkpoints",
        resumed(lambda desk: shutil.rmtree(desk.root / "run/checkpoints"), "--from-step", "1"),
        "'run/checkpoints' holds no checkpoint to resume from",
    ),
    case(
        "from-step-of-no-run",
        lambda desk: ["train", "--from-step", "3", "--json"],
        "--from-step 3: names a checkpoint of a run",
        "--resume DIR",
    ),
    case("show-nothing", lambda desk: ["show", "absent"], "'absent': not a run folder"),
    case(
        "show-the-folder-of-runs",
        lambda desk: (desk.run("runs/first"), ["show", "runs"])[-1],
        "'runs': not a run folder",
        "Did you mean 'runs/first'?",
    ),
    case(
        "show-a-metric-misspelt",
        lambda desk: ["show", desk.run(), "--metric", "rewrd", "--json"],
        "--metric 'rewrd'",
        "Did you mean 'reward'?",
    ),
    case(
        "eval-nothing",
        lambda desk: ["eval", "absent", "--json"],
        "MODEL_OR_RUN = 'absent': no such folder",
        "a run folder",
    ),
    case(
        "eval-an-empty-folder",
        lambda desk: ((desk.root / "empty").mkdir(), ["eval", "empty", "--json"])[-1],
        "'empty' holds neither",
    ),
    case(
        "eval-no-samples",
        lambda desk: ["eval", "tiny", "-k", "0", "--json"],
        "generations = 0: should be at least 1",
    ),
    case(
        "eval-no-prompts",
        lambda desk: ["eval", "tiny", "--prompts", "0", "--json"],
        "eval.prompts = 0 leaves nothing to evaluate",
    ),
    case(
        "eval-with-a-reward-misspelt",
        lambda desk: ["eval", "tiny", "--reward", "numerics", "--json"],
        "no reward 'numerics'",
        "Did you mean 'numeric'?",
    ),
    case(
        "eval-a-damaged-checkpoint",
        evaluated(flip_a_bit),
        "'run/checkpoints/step-2' is damaged",
    ),
    case(
        "eval-with-another-model",
        evaluated(another_model),
        "was not made with the model that",
    ),
    case(
        "check-nothing",
        lambda desk: ["check", "absent.toml", "--json"],
        "'absent.toml': no such file",
    ),
    case(
        "check-a-folder-that-is-no-run",
        lambda desk: ((desk.root / "empty").mkdir(), ["check", "empty", "--json"])[-1],
        "RUN_OR_RECIPE = 'empty': not a run folder",
    ),
    case(
        "check-a-damaged-checkpoint",
        checked(flip_a_bit),
        "'run/checkpoints/step-2' is damaged",
    ),
    case(
        "check-with-another-model",
        checked(another_model),
        "was not made with the model that",
    ),
]
assert SMALL_RUN["train"]["steps"] == 2, "the cases speak of a run of two steps"
