"""What went wrong in scoring, counted, and said once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from roost.errors import RewardError
from roost.rewards.pool import Failure, Scored


@dataclass(frozen=True, slots=True)
class StepScoring:
    """The scoring of one step."""

    samples: int
    unscored: int
    failures: Counter[str]
    """Samples that a reward could not score, by the reward's name."""
    messages: list[str]
    """For a person; each kind of failure of each reward once a run."""

    def metrics(self) -> dict[str, float]:
        """``rewards/unscored`` and, where there were any, ``rewards/NAME/failed``."""
        counts = {f"rewards/{name}/failed": count for name, count in self.failures.items()}
        return {"rewards/unscored": self.unscored, **counts}


@dataclass(slots=True)
class ScoringReport:
    """Follows the scoring of a run; remembers what has been said."""

    of: str = "of this step"
    """Whose samples these are, for the error."""
    purpose: str = "to learn from"
    """What nothing is left for, likewise."""
    _said: set[tuple[str, str]] = field(default_factory=set)

    def add(self, scores: Sequence[Scored]) -> StepScoring:
        """Count a step.

        Raises:
            RewardError: no sample of the step could be scored.
        """
        failures = [failure for score in scores for failure in score.failures]
        unscored = sum(score.reward is None for score in scores)
        if scores and unscored == len(scores):
            raise RewardError(
                f"none of the {unscored} samples {self.of} could be scored, so there is nothing "
                f"{self.purpose}. The first failure: {_describe(failures[0])}"
            )
        return StepScoring(
            samples=len(scores),
            unscored=unscored,
            failures=Counter(failure.reward for failure in failures),
            messages=[text for failure in failures if (text := self._say_once(failure))],
        )

    def _say_once(self, failure: Failure) -> str | None:
        key = (failure.reward, failure.kind)
        if key in self._said:
            return None
        self._said.add(key)
        return f"{_describe(failure)} The sample is left unscored; said once for each kind."


def _describe(failure: Failure) -> str:
    who = "the rewards" if failure.reward == "all" else f"reward {failure.reward!r}"
    prompt = failure.prompt if len(failure.prompt) <= 200 else f"{failure.prompt[:200]}..."
    return f"{who}: {failure.message}, for the prompt {prompt!r}."
