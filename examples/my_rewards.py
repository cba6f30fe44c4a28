"""A reward of your own: any function that takes completions and returns a number for each.

Use it from a recipe or the command line::

    roost train --set 'rewards=["examples/my_rewards.py:digits"]'

Besides ``completions`` (a list of texts) a reward may ask for any column of the data by its name,
and for ``prompts``, ``completion_ids`` and ``finish_reasons``; each is a list of the same length.
None for a completion leaves it unscored.
"""


def digits(completions: list[str]) -> list[float]:
    """The share of characters that are digits."""
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


def short_and_right(completions: list[str], answer: list[str]) -> list[float | None]:
    """1 for the right answer alone, 0.5 for one inside other text; uses the column ``answer``."""
    return [
        1.0 if text.strip() == right else 0.5 if right in text else 0.0
        for text, right in zip(completions, answer, strict=True)
    ]
