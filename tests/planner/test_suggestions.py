"""Changes that make a plan fit, or faster: each must do what it says."""

from __future__ import annotations

from roost.planner.cards import registry
from roost.planner.layouts import choose
from roost.planner.models import find_shape
from roost.planner.request import Hardware, Request, Training, Wishes, Workload
from roost.planner.suggestions import FASTER, suggestions

WORK = Workload(8, 8, 512, 1024)
H100 = registry().card("H100")


def asked(training: Training | None = None, **wishes: object) -> Request:
    return Request(
        find_shape("Llama-3.1-8B"),
        Hardware(H100),
        WORK,
        training or Training(),
        wishes=Wishes(**wishes),  # type: ignore[arg-type]
    )


def test_a_full_run_on_one_card_is_told_to_train_an_adapter() -> None:
    # 120 GiB of states on 79 GiB.
    plan = choose(asked(Training("full")))
    assert not plan.fits
    found = suggestions(plan)
    assert 0 < len(found) <= 3
    assert any(one.flags == "--method lora" for one in found)
    assert all(one.headroom_bytes >= 0 for one in found)


def test_a_share_that_is_too_small_is_what_is_changed_first() -> None:
    # A tenth of 79 GiB holds no 15 GiB of weights.
    plan = choose(asked(utilization=0.1))
    assert not plan.fits
    first = suggestions(plan)[0]
    assert first.flags.startswith("--gpu-memory-utilization ")
    share = float(first.flags.split()[1])
    assert choose(asked(utilization=share)).fits


def test_more_cards_come_last() -> None:
    tight = Request(find_shape("Qwen3-32B"), Hardware(registry().card("L40S")), WORK)
    found = suggestions(choose(tight))
    assert found
    cards = [one.flags.startswith("--gpus") for one in found]
    assert cards == sorted(cards)
    assert found[-1].flags.startswith("--gpus")


def test_what_fits_is_only_told_of_what_is_faster_and_learns_the_same() -> None:
    plan = choose(asked())
    assert plan.fits
    for one in suggestions(plan):
        assert one.total_s < FASTER * plan.seconds.total
        assert not one.flags.startswith(("--gpus", "--completion-length"))


def test_a_wish_for_ddp_is_named_where_sharding_would_fit() -> None:
    request = Request(
        find_shape("Qwen3-32B"),
        Hardware(H100, gpus_per_node=8),
        WORK,
        Training("full"),
        wishes=Wishes(strategy="ddp", mode="colocate"),
    )
    plan = choose(request)
    assert not plan.fits
    assert "--strategy fsdp" in [one.flags for one in suggestions(plan)]


def test_the_cost_of_a_change_is_its_cards_times_its_seconds() -> None:
    tight = Request(find_shape("Qwen3-32B"), Hardware(registry().card("L40S")), WORK)
    more = next(one for one in suggestions(choose(tight)) if one.flags.startswith("--gpus"))
    gpus = int(more.flags.split()[1])
    assert more.gpu_seconds == gpus * more.total_s
