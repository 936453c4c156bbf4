"""Schedules in the store, as the services read and write them.

A firing is named by its schedule and its time, so none exists twice.  It is ``due`` from the moment at which
it is noticed until its job is in the store.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

ScheduleState = Literal["active", "paused", "over", "removed"]
FiringState = Literal["due", "submitted", "refused", "left_out"]


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A job file that is submitted again and again, and its owner."""

    id: int
    name: str
    uid: int  # of the submitter
    gid: int
    owner: str
    path: str
    text: str  # the job file as it was submitted
    terms: Mapping[str, Any]  # its section ``schedule``
    made_at: datetime
    looked_at: datetime
    state: ScheduleState = "active"
    note: str = ""


@dataclass(frozen=True, slots=True)
class FiringRow:
    """One time of a schedule, and its outcome."""

    schedule: int
    at: datetime
    state: FiringState
    job_id: str | None
    text: str


class Schedules(Protocol):
    """The schedules of one store.  One thread at a time writes; any thread reads."""

    def batch(self) -> AbstractContextManager[object]:
        """Write everything in the block, jobs included, in one transaction, or nothing of it."""

    def add(self, row: ScheduleRow, token: str | None) -> ScheduleRow:
        """Write a new schedule and return it with its id."""

    def move(self, row: ScheduleRow, state: ScheduleState, note: str, looked_at: datetime) -> None:
        """Write the new state of a schedule."""

    def record_firing(
        self, row: ScheduleRow, at: datetime, now: datetime, state: FiringState, text: str
    ) -> bool:
        """Write a firing, and that all times before ``now`` are settled; return whether the firing is new."""

    def settle(self, firing: FiringRow, state: FiringState, text: str, job_id: str | None = None) -> None:
        """Write the outcome of a firing that was due."""

    def known(self, number: int) -> ScheduleRow:
        """Return a schedule that exists; schedules are never deleted."""

    def made_with(self, token: str) -> ScheduleRow | None:
        """Return the schedule that was made with a token."""

    def find(self, reference: str, uid: int, owner: str) -> ScheduleRow | None:
        """Return a schedule by its id, or the newest of that name, the caller's own before others'."""

    def named(self, name: str, uid: int, owner: str) -> tuple[ScheduleRow, ...]:
        """Return the schedules of a user that have a name and are not over."""

    def listed(self, uid: int | None, *, every: bool) -> tuple[ScheduleRow, ...]:
        """Return schedules in the order of their ids; of one user unless ``uid`` is None."""

    def active(self) -> tuple[ScheduleRow, ...]:
        """Return the schedules that are active."""

    def firings(self, number: int) -> tuple[FiringRow, ...]:
        """Return the last firings of a schedule, the newest first."""

    def due(self) -> tuple[FiringRow, ...]:
        """Return the firings whose job has not been submitted yet."""

    def unfinished(self, number: int) -> tuple[str, ...]:
        """Return the ids of a schedule's jobs that have not ended."""
