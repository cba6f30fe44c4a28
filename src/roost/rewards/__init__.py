"""Rewards: functions that score completions, run in processes that can be killed."""

from roost.rewards.loading import Reward, check_columns, load_rewards
from roost.rewards.pool import Failure, RewardPool, Scored
from roost.rewards.scoring import ScoringReport, StepScoring

__all__ = [
    "Failure",
    "Reward",
    "RewardPool",
    "Scored",
    "ScoringReport",
    "StepScoring",
    "check_columns",
    "load_rewards",
]
