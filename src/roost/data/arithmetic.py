"""The built-in prompt source ``arithmetic``: small sums and differences, no two alike.

Imports no torch.
"""

from __future__ import annotations

import random
from math import isqrt

from roost.errors import DataError

OPERATIONS = "+-"


def rows(
    size: int = 2000, seed: int = 0, largest: int = 99, operations: str = OPERATIONS
) -> list[dict[str, str]]:
    """Draw ``size`` different problems; the same arguments always give the same rows.

    Operands are 0 to ``largest``. A difference is never negative. As no problem comes twice, any
    split of the rows into two parts has no problem in both.

    Returns:
        Rows with the columns ``prompt`` ("12+7=") and ``answer`` ("19").

    Raises:
        DataError: an argument is of the wrong kind, or there are fewer than ``size`` problems.

    >>> rows(size=2, seed=1)
    [{'prompt': '22+1=', 'answer': '23'}, {'prompt': '93+25=', 'answer': '118'}]
    """
    _check(size, largest, operations)
    counts = [_count(operation, largest) for operation in operations]
    if size > sum(counts):
        raise DataError(
            f"arithmetic: size = {size}, but there are only {sum(counts)} different problems with "
            f"operations = {operations!r} and largest = {largest}. Ask for fewer, or raise largest."
        )
    chosen = random.Random(seed).sample(range(sum(counts)), size)
    return [_row(index, largest, operations) for index in chosen]


def _check(size: int, largest: int, operations: str) -> None:
    for name, value in (("size", size), ("largest", largest)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DataError(f"arithmetic: {name} = {value!r} must be a whole number of at least 1.")
    known = isinstance(operations, str) and set(operations) <= set(OPERATIONS)
    if not known or not operations or len(set(operations)) < len(operations):
        raise DataError(
            f"arithmetic: operations = {operations!r} must be one or more of the signs "
            f"{OPERATIONS!r}, each once, such as '+'."
        )


def _count(operation: str, largest: int) -> int:
    numbers = largest + 1
    return numbers * numbers if operation == "+" else numbers * (numbers + 1) // 2


def _row(index: int, largest: int, operations: str) -> dict[str, str]:
    """Problem number ``index`` of the list that all problems would make, never written out."""
    operation = operations[0]
    if index >= _count(operation, largest):
        index -= _count(operation, largest)
        operation = operations[1]
    if operation == "+":
        a, b = divmod(index, largest + 1)
        return {"prompt": f"{a}+{b}=", "answer": str(a + b)}
    # Pairs with b <= a, counted row by row: row a starts at a(a+1)/2.
    a = (isqrt(8 * index + 1) - 1) // 2
    b = index - a * (a + 1) // 2
    return {"prompt": f"{a}-{b}=", "answer": str(a - b)}
