import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.data import arithmetic
from roost.errors import DataError


def parse(prompt: str) -> tuple[int, str, int]:
    operation = "+" if "+" in prompt else "-"
    a, b = prompt.removesuffix("=").split(operation)
    return int(a), operation, int(b)


@given(st.integers(1, 200), st.integers(0, 10), st.integers(14, 120), st.sampled_from(["+", "+-"]))
def test_rows_are_right_distinct_and_within_bounds(size, seed, largest, operations):
    rows = arithmetic.rows(size=size, seed=seed, largest=largest, operations=operations)
    assert len({row["prompt"] for row in rows}) == size
    for row in rows:
        a, operation, b = parse(row["prompt"])
        assert 0 <= a <= largest
        assert 0 <= b <= largest
        assert operation in operations
        answer = a + b if operation == "+" else a - b
        assert answer >= 0
        assert row["answer"] == str(answer)


def test_every_problem_can_be_drawn_once():
    rows = arithmetic.rows(size=9 + 6, largest=2)
    expected = {f"{a}+{b}=" for a in range(3) for b in range(3)}
    expected |= {f"{a}-{b}=" for a in range(3) for b in range(a + 1)}
    assert {row["prompt"] for row in rows} == expected


def test_rows_depend_on_the_seed_alone():
    assert arithmetic.rows(size=50, seed=3) == arithmetic.rows(size=50, seed=3)
    assert arithmetic.rows(size=50, seed=3) != arithmetic.rows(size=50, seed=4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 16, "largest": 2}, "only 15 different problems"),
        ({"size": 0}, "size = 0"),
        ({"size": "many"}, "size = 'many'"),
        ({"largest": True}, "largest = True"),
        ({"operations": "*"}, "operations = '*'"),
        ({"operations": "++"}, "operations = '++'"),
        ({"operations": ""}, "operations = ''"),
    ],
)
def test_bad_options_name_themselves(options, words):
    with pytest.raises(DataError) as raised:
        arithmetic.rows(**options)
    assert words in str(raised.value)
