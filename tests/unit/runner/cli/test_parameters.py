"""Values of options that several commands share."""

import time
from collections.abc import Iterator
from datetime import datetime

import click
import pytest

from runner.cli.parameters import time_ago, time_ahead

NOW_S = 1774742400.0  # 2026-03-29 00:00 UTC, an hour before the clocks of Berlin go forward


@pytest.fixture(autouse=True)
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def told(text: str | None) -> str | None:
    return time_ahead(click.Context(click.Command("x")), click.Option(["--not-before"]), text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("22:00", "2026-03-29T22:00:00+02:00"),
        ("1:30", "2026-03-29T01:30:00+01:00"),
        ("01:00", "2026-03-30T01:00:00+02:00"),  # it is one o'clock now
        ("00:59", "2026-03-30T00:59:00+02:00"),
        ("+2h", "2026-03-29T04:00:00+02:00"),
        ("+90m", "2026-03-29T03:30:00+02:00"),
        ("+1h30m", "2026-03-29T03:30:00+02:00"),
        ("2030-01-31T18:00:00+01:00", "2030-01-31T18:00:00+01:00"),
        ("now+90m", "2026-03-29T03:30:00+02:00"),
        ("now+1hour", "2026-03-29T03:00:00+02:00"),
        ("now + 2 days", "2026-03-31T02:00:00+02:00"),
        ("tomorrow", "2026-03-30T00:00:00+02:00"),
        ("tomorrow 9:00", "2026-03-30T09:00:00+02:00"),
        ("today 22:00", "2026-03-29T22:00:00+02:00"),
        ("2026-03-28", "2026-03-28T00:00:00+01:00"),
        ("2030-07-31 18:00", "2030-07-31T18:00:00+02:00"),
        ("2030-01-31T18:00:30", "2030-01-31T18:00:30+01:00"),
        ("2030-06-31", "2030-06-31"),  # this and the following are refused by the daemon
        ("now", "2026-03-29T01:00:00+01:00"),
        ("noon", "2026-03-29T12:00:00+02:00"),
        ("midnight", "2026-03-30T00:00:00+02:00"),
        (None, None),
    ],
)
def test_a_time_of_the_day_and_a_duration_from_now_are_moments(text: str | None, moment: str | None) -> None:
    assert told(text) == moment
    if moment and "T" in moment:
        assert datetime.fromisoformat(moment).tzinfo is not None


@pytest.mark.parametrize("text", ["next week", "25:00", "9pm", "22.00", "2h", "22:00Z", "monday"])
def test_another_text_is_refused_with_the_forms_that_a_time_has(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not a time; write 22:00, tomorrow 9:00, \+2h or 2030"):
        told(text)


@pytest.mark.parametrize("text", ["+2", "+", "+h", "+-1h", "now+", "+1 week"])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        told(text)


@pytest.mark.parametrize("text", ["+99999999999d", f"+1{400 * '0'}h"])
def test_a_duration_beyond_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is after the year 9999"):
        told(text)


def test_a_date_before_the_calendar_is_refused_here_or_by_the_daemon() -> None:
    with pytest.raises(click.BadParameter, match="is not a time"):
        time_ago(click.Context(click.Command("x")), click.Option(["--since"]), "0001-01-01")
    assert told("0001-01-01") == "0001-01-01"
