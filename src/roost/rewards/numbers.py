"""Numbers in text, as exact fractions."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(
    r"""
    (?<![\w.])            # not inside a word or a number
    [-+]?                 # a sign; after a digit it is an operator, which the line above rules out
    (?:\d{1,3}(?:,\d{3})+ # 1,234,567
      |\d+)
    (?:\.\d+)?
    (?:/\d+)?             # 3/4
    """,
    re.VERBOSE,
)
_UNSIGNED = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?")


def last_number(text: str) -> Fraction | None:
    """The last number in a text, exactly; None when there is none.

    >>> [str(last_number(text)) for text in ("5 - 9 = -4", "1,234.50 USD", "7-3", "no")]
    ['-4', '2469/2', '3', 'None']
    """
    signed = [(m.end(), m.group()) for m in _NUMBER.finditer(text)]
    unsigned = [(m.end(), m.group()) for m in _UNSIGNED.finditer(text)]
    if not unsigned:
        return None
    end, digits = unsigned[-1]
    # The sign belongs to the number only where the signed pattern ends at the same place.
    found = signed[-1][1] if signed and signed[-1][0] == end else digits
    return to_fraction(found)


def to_fraction(text: str) -> Fraction | None:
    """An exact value of ``-1,234.5`` or ``3/4``; None where it is not a number.

    >>> to_fraction("-1,234.5"), to_fraction("3/0"), to_fraction("x")
    (Fraction(-2469, 2), None, None)
    """
    above, _, below = text.strip().replace(",", "").partition("/")
    try:
        return Fraction(above) / (Fraction(below) if below else 1)
    except (ValueError, ZeroDivisionError):
        return None
