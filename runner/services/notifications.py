"""Tells people what happens to jobs: each rule of the settings on a thread of its own, never on the loop.

The queue of what is to be told is the store itself: a rule remembers the last event that it is done
with, so a restart loses nothing, and what is told twice after a kill is one notice at most.  A rule
whose receiver is gone waits; what is older than a day by then is dropped, counted and logged.
"""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from threading import Event as Flag
from typing import Final

import structlog

from runner.base.errors import RunnerError
from runner.base.threads import PeriodicThread
from runner.core.notification import Notification
from runner.core.ports.clock import Clock
from runner.core.ports.notifications import NotificationFeed, Origin, RetryLater, Send, Undelivered
from runner.files.settings.notify import NotificationRule
from runner.services.jobs import JobService

log = structlog.get_logger()

LOOK_S: Final = 1.0
"""Between two looks at the store; each costs a fraction of a millisecond."""

BATCH: Final = 100
"""Events that are in memory at a time."""

TRIES: Final = 8
"""Of a notice that the receiver answers, and does not take: about two minutes."""

WAIT_MAX_S: Final = 60.0
"""Longest wait between two tries; they begin at 1 s and double."""

KEEP: Final = timedelta(days=1)
"""What happened longer ago is not told any more."""

UNWRITTEN: Final = 500
"""Events that nobody wants may be looked at again after a kill; so many of them."""


@dataclass(slots=True)
class Sender:
    """Takes what a rule is about to its receiver, in order, one at a time."""

    rule: NotificationRule
    send: Send
    feed: NotificationFeed
    clock: Clock
    write: Callable[[str, int], None]  # how far it has got, durably
    pause: Callable[[float], bool]  # wait; true when it is time to leave
    delivered: int = 0
    dropped: int = 0
    _seq: int | None = None
    _written: int = 0
    _more: bool = False

    @property
    def key(self) -> str:
        """Name of the rule in the store: one that says something else is another."""
        return "notified:" + hashlib.sha256(self.rule.model_dump_json().encode()).hexdigest()[:16]

    def next_look_s(self) -> float:
        """Return the wait before the next look: none while there may be more at once."""
        return 0.0 if self._more else LOOK_S

    def look_once(self) -> None:
        """Take what is there."""
        self._more = False
        self._more = self.look()

    def look(self) -> bool:
        """Take what is there; return whether there may be more at once."""
        if self._seq is None:
            self._begin()
        notifications = self.feed.after(self._seq or 0, BATCH)
        for notification in notifications:
            wanted = self.wants(notification)
            if wanted and not self._deliver(notification):
                return False  # the daemon leaves; the next one goes on from here
            self._seq = notification.seq
            if wanted or notification.seq - self._written >= UNWRITTEN:
                self._write(notification.seq)
        return len(notifications) == BATCH

    def wants(self, notification: Notification) -> bool:
        """Return whether the rule is about something that has happened."""
        whose = self.rule.who == "all" or notification.owner in self.rule.who
        return whose and not notification.topics.isdisjoint(self.rule.on)

    def _begin(self) -> None:
        """Go on where the daemon before has left off; a new rule begins with what comes next."""
        told = self.feed.told(self.key)
        self._seq = self._written = self.feed.newest() if told is None else told
        if told is None:
            self._write(self._seq)

    def _write(self, seq: int) -> None:
        try:
            self.write(self.key, seq)
        except (RunnerError, Late) as error:  # at worst something is told twice
            log.warning("notify.cannot_record", way=self.rule.way, problem=str(error))
        else:
            self._written = seq

    def _deliver(self, notification: Notification) -> bool:
        """Deliver or drop a notice; return false when there was no time for either."""
        tries = 0
        while self.clock.now() - notification.at <= KEEP:
            try:
                self.send(notification)
            except Undelivered as error:
                tries += 1
                log.info("notify.undelivered", way=self.rule.way, seq=notification.seq, problem=str(error))
                if error.again is RetryLater.NEVER or (error.again is RetryLater.SOME and tries >= TRIES):
                    return self._drop(notification, str(error))
            else:
                self.delivered += 1
                return True
            if self.pause(min(2.0 ** min(tries - 1, 10), WAIT_MAX_S)):
                return False
        return self._drop(notification, f"older than {KEEP.days} day")

    def _drop(self, notification: Notification, why: str) -> bool:
        self.dropped += 1
        log.warning(
            "notify.dropped", way=self.rule.way, seq=notification.seq, job_id=notification.job_id,
            kind=notification.kind, problem=why, dropped=self.dropped,
        )  # fmt: skip
        return True


@dataclass(slots=True)
class Notifications:
    """All the rules of the settings."""

    couriers: tuple[Sender, ...]
    _stop: Flag = field(default_factory=Flag)
    _threads: tuple[PeriodicThread, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._threads = tuple(
            PeriodicThread(
                f"notify-{number}",
                courier.next_look_s,
                courier.look_once,
                begin_at_once=True,
                retry_s=lambda _failures: WAIT_MAX_S,
            )
            for number, courier in enumerate(self.couriers)
        )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Leave; what is not told yet is told by the next daemon."""
        self._stop.set()
        for thread in self._threads:
            thread.stop()

    def counts(self) -> tuple[tuple[str, int, int], ...]:
        """Return (way, delivered, dropped) of each rule since the daemon began."""
        return tuple((each.rule.way, each.delivered, each.dropped) for each in self.couriers)


def notifier(service: JobService, sender_for: Callable[[NotificationRule, Origin], Send]) -> Notifications:
    """Return what tells people about the jobs of a service; it has not begun yet."""
    feed, stop = service.notification_feed, Flag()
    origin = Origin(service.store.instance, os.uname().nodename)

    def write(key: str, seq: int) -> None:
        service.daemon.run_exclusively(partial(feed.remember, key, seq))

    couriers = (
        Sender(rule, sender_for(rule, origin), feed, service.clock, write, stop.wait)
        for rule in service.settings.notify
    )
    return Notifications(tuple(couriers), stop)
