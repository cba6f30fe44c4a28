from __future__ import annotations

import pytest

from roost.bench.growth import doubling, fit_line, plot
from roost.errors import ConfigError


def test_points_on_a_line_give_the_line() -> None:
    intercept, slope = fit_line([1, 2, 4], [5.0, 7.0, 11.0])
    assert intercept == pytest.approx(3.0)
    assert slope == pytest.approx(2.0)


def test_the_fit_weighs_relative_errors() -> None:
    """For y = 1, 2, 6 at x = 1, 2, 3 the weights are 1, 1/4, 1/36; worked out by hand:
    the mean of x is (36 + 18 + 3) / 46, of y (36 + 18 + 6) / 46."""
    mean_x, mean_y = 57 / 46, 60 / 46
    weights = [1.0, 1 / 4, 1 / 36]
    top = sum(
        w * (x - mean_x) * (y - mean_y)
        for w, x, y in zip(weights, [1, 2, 3], [1, 2, 6], strict=True)
    )
    bottom = sum(w * (x - mean_x) ** 2 for w, x in zip(weights, [1, 2, 3], strict=True))

    intercept, slope = fit_line([1, 2, 3], [1.0, 2.0, 6.0])

    assert slope == pytest.approx(top / bottom)
    assert intercept == pytest.approx(mean_y - slope * mean_x)


def test_one_point_is_its_own_line() -> None:
    assert fit_line([8], [4.0]) == (0.0, 0.5)


def test_doubling_ends_at_the_limit() -> None:
    assert doubling(8, 256, "--most-completions") == [8, 16, 32, 64, 128, 256]
    assert doubling(8, 8, "--most-completions") == [8]
    assert doubling(64, 100, "--longest") == [64]


def test_a_limit_below_the_first_point_is_refused() -> None:
    with pytest.raises(ConfigError, match="--longest 10: the first point is 64"):
        doubling(64, 10, "--longest")


def test_bars_are_as_long_as_their_seconds() -> None:
    points = [
        {"x": 8, "step_s": 1.0, "line_s": 1.0, "off_line": 0.0},
        {"x": 16, "step_s": 4.0, "line_s": 2.0, "off_line": 1.0},
    ]
    bars = [line.split("%  ")[1] for line in plot(points, width=8)]
    assert bars == ["##|", "####|####"]
