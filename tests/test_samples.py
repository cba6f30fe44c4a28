from __future__ import annotations

import math
import pickle
import subprocess
import sys
from typing import Any

import pytest

from roost.samples import FinishReason, Group, Prompt, Sample, TokenSource


def sample(**changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "prompt_id": 1,
        "index": 0,
        "token_ids": [5, 6],
        "logprobs": [math.log(0.5), math.log(1.0)],
        "kept_mass_logs": [math.log(0.4), math.log(0.9)],
        "finish_reason": FinishReason.STOP,
        "policy_versions": [3, 3],
        "sources": [TokenSource.MODEL, TokenSource.MODEL],
    }
    return Sample(**(fields | changes))


def test_log_probabilities_over_the_full_vocabulary() -> None:
    """Half of a kept mass of 0.4 is 0.2 of the whole."""
    assert [math.exp(x) for x in sample().full_logprobs] == pytest.approx([0.2, 0.9])


def test_log_probabilities_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        _ = sample(kept_mass_logs=[0.0]).full_logprobs


@pytest.mark.parametrize(
    ("reason", "truncated"), [(FinishReason.STOP, False), (FinishReason.LENGTH, True)]
)
def test_only_a_spent_budget_truncates(reason: FinishReason, truncated: bool) -> None:
    assert sample(finish_reason=reason).truncated is truncated


def test_finish_reasons_are_words_for_rewards_and_files() -> None:
    assert [str(reason) for reason in FinishReason] == ["stop", "length"]


def test_a_new_sample_is_unscored() -> None:
    new = sample()
    assert (new.reward, new.rewards, new.advantage) == (None, {}, 0.0)
    assert new.rewards is not sample().rewards


def test_a_prompt_does_not_change() -> None:
    prompt = Prompt(1, (2, 3), "text")
    with pytest.raises(AttributeError):
        prompt.token_ids = (4,)  # type: ignore[misc]
    assert prompt.columns is not Prompt(1, (2, 3), "text").columns


def test_they_travel_to_workers_and_back() -> None:
    group = Group(Prompt(1, (2,), [{"role": "user", "content": "x"}], {"answer": 3}), [sample()])
    assert pickle.loads(pickle.dumps(group)) == group


def test_they_weigh_nothing() -> None:
    """Reward workers import this, and should not load torch for it."""
    check = "import sys, roost.samples; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
