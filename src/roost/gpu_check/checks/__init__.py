"""The checks: functions of a ``Place`` that say what they found, or raise ``CheckFailed``."""
