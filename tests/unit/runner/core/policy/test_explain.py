from datetime import timedelta

import pytest

from runner.core.policy.explain import format_span


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (30, "30 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (86400 * 2.5, "2.5 d"),
    ],
)
def test_a_duration_is_told_in_the_unit_that_suits_it(seconds: float, said: str) -> None:
    assert format_span(timedelta(seconds=seconds)) == said
