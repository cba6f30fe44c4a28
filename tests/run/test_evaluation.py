from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.run.evaluation import pass_at_k


@given(
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
)
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_pass(case: tuple[int, int, int]) -> None:
    n, correct, k = case
    subsets = list(combinations([True] * correct + [False] * (n - correct), k))
    assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("n", "k"), [(4, 0), (4, 5)])
def test_k_outside_its_range(n: int, k: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= n"):
        pass_at_k(n, 1, k)
