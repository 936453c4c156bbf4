"""Schedules as the outside sees them; their times are on their own clock, with its offset."""

from runner.adapters.sqlite.schedules import OccasionRow, ScheduleRow
from runner.server.api.views import Json, moment
from runner.services.schedules.service import Schedules


def summary(schedules: Schedules, row: ScheduleRow) -> Json:
    """Return what a list shows of one schedule; its next times are on its own clock."""
    return {
        "id": row.id or None,
        "name": row.name,
        "owner": row.owner,
        "state": row.state,
        "note": row.note,
        **row.terms,
        "made_at": moment(row.made_at),
        "next": [at.isoformat(timespec="minutes") for at in schedules.next_times(row)],
        "last": next(map(_occasion, schedules.occasions(row)), None),
    }


def detail(schedules: Schedules, row: ScheduleRow) -> Json:
    """Return everything about one schedule."""
    occasions = [_occasion(each) for each in schedules.occasions(row)]
    return {**summary(schedules, row), "path": row.path, "text": row.text, "occasions": occasions}


def _occasion(row: OccasionRow) -> Json:
    return {
        "at": row.at.isoformat(timespec="minutes"),
        "state": row.state,
        "job": row.job_id,
        "text": row.text,
    }
