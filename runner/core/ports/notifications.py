"""Delivery of notifications, and the position that each rule has reached."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias
from urllib.parse import quote

from runner.base.textfile import one_line
from runner.core.notification import Notification

Send: TypeAlias = Callable[[Notification], None]
"""Delivers one notification, or raises ``Undelivered``."""


Options: TypeAlias = Mapping[str, str]


class RetryLater(Enum):
    """Prospect of another try to deliver a notification."""

    NEVER = "never"  # the receiver refused it
    SOME = "some"  # the receiver answers, but has a problem
    LONG = "long"  # the receiver does not answer


class Undelivered(Exception):
    """A notification has not been delivered, as far as is known."""

    def __init__(self, why: str, again: RetryLater) -> None:
        super().__init__(one_line(why)[:300])
        self.again = again


@dataclass(frozen=True, slots=True)
class Origin:
    """The server that notifications come from; receivers of several servers tell them apart by it."""

    instance: str
    host: str
    dashboard: str | None = None  # its address without a slash at the end

    def link(self, job_id: str) -> str | None:
        """Return the address of a job's page; None where nobody has said where the dashboard is."""
        return None if self.dashboard is None else f"{self.dashboard}/jobs/{quote(job_id, safe='')}"


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel of a plug-in, by which a rule with ``channel`` is delivered.

    ``make`` returns the delivery for the ``options`` of a rule, and raises ``ValueError`` for those that it
    does not take.  A delivery raises ``Undelivered``; any other error is tried again, too.
    """

    make: Callable[[Options], Callable[[Notification, Origin], None]]


class NotificationFeed(Protocol):
    """The events of the store as notifications, in order of ``seq``."""

    def after(self, seq: int, limit: int) -> tuple[Notification, ...]:
        """Return the notifications after ``seq``, the oldest first."""

    def newest(self) -> int:
        """Return the ``seq`` of the newest event."""

    def told(self, key: str) -> int | None:
        """Return the last ``seq`` that a rule is done with; None if the rule is new."""

    def remember(self, key: str, seq: int) -> None:
        """Write the last ``seq`` that a rule is done with; only the store's writer may call this."""
