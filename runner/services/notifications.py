"""Sending notifications about jobs: each rule of the settings has a thread of its own.

The store is the queue: a rule records the last event that it is done with.  So a restart loses nothing, and
after a kill at most one notification is sent twice.  A rule whose receiver is gone waits; notifications that
are older than a day by then are dropped, counted and logged.
"""

import os
from collections.abc import Callable
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from math import inf
from threading import Event as Flag
from typing import Final, TypeAlias

import structlog

from runner.base.errors import RunnerError
from runner.base.textfile import one_line
from runner.base.threads import PeriodicThread
from runner.core.notification import NOT_SENT, Notification, ReportedCurve
from runner.core.ports.clock import Clock
from runner.core.ports.notifications import NotificationFeed, Origin, RetryLater, Send, Undelivered
from runner.files.settings.notify import NotificationRule
from runner.services.jobs import JobService

log = structlog.get_logger()

PERIOD_S: Final = 1.0
"""Seconds between two reads of the store; each takes a fraction of a millisecond."""

BATCH: Final = 100
"""Events that are read at a time."""

MAX_TRIES: Final = 8
"""Tries of a notification that the receiver answers but does not accept: about two minutes."""

MAX_WAIT_S: Final = 60.0
"""Longest wait between two tries; the first waits 1 s, and each further wait doubles."""

LEFT_OUT: Final = timedelta(minutes=1)
"""For how long an owner gets nothing whose own address has failed: what others get waits behind it."""

MAX_AGE: Final = timedelta(days=1)
"""Older events are not sent any more."""

MAX_UNRECORDED: Final = 500
"""Events that match no rule may be read again after a kill: at most so many."""


CurveOf: TypeAlias = Callable[[str], ReportedCurve | None]
"""Returns the loss of a job; may raise a ``RunnerError`` or an ``OSError``."""


@dataclass(slots=True)
class Sender:
    """Sends the notifications of one rule, in order, one at a time."""

    rule: NotificationRule
    send: Send
    feed: NotificationFeed
    clock: Clock
    write: Callable[[str, int], None]  # records the last event that is done
    pause: Callable[[float], bool]  # waits; returns True if the daemon stops
    curve_of: CurveOf = lambda _job_id: None
    note: Callable[[str, str], None] = lambda _job_id, _text: None  # tells who did not get it
    dropped: int = 0
    _done: int | None = None
    _recorded: int = 0
    _more: bool = False
    _left_out: dict[str, float] = field(default_factory=dict)  # by owner, until when on the monotonic clock

    @property
    def key(self) -> str:
        """The key of the rule in the store; a rule that is edited gets another key."""
        return f"notified:{self.rule.digest}"

    def next_round_s(self) -> float:
        """Return the wait before the next round: none while there may be more events."""
        return 0.0 if self._more else PERIOD_S

    def run_round(self) -> None:
        """Do one round."""
        self._more = False
        self._more = self.send_next()

    def send_next(self) -> bool:
        """Send the next notifications; return whether there may be more."""
        if self._done is None:
            self._load_position()
        notifications = self.feed.after(self._done or 0, BATCH)
        for notification in notifications:
            wanted = self.matches(notification)
            if wanted and not self._deliver(notification):
                return False  # the daemon stops; the next one goes on from here
            self._done = notification.seq
            if wanted or notification.seq - self._recorded >= MAX_UNRECORDED:
                self._record(notification.seq)
        return len(notifications) == BATCH

    def matches(self, notification: Notification) -> bool:
        """Return True if a notification matches the rule."""
        whose = self.rule.who == "all" or notification.owner in self.rule.who
        names_own = not self.rule.own or self.rule.for_job(notification.labels) is not None
        return whose and names_own and not notification.topics.isdisjoint(self.rule.on)

    def _load_position(self) -> None:
        """Go on where the last daemon stopped; a new rule starts with the next event."""
        told = self.feed.told(self.key)
        self._done = self._recorded = self.feed.newest() if told is None else told
        if told is None:
            self._record(self._done)

    def _record(self, seq: int) -> None:
        try:
            self.write(self.key, seq)
        except (RunnerError, Late) as error:  # at worst a notification is sent twice
            log.warning("notify.cannot_record", way=self.rule.way, problem=str(error))
        else:
            self._recorded = seq

    def _deliver(self, notification: Notification) -> bool:
        """Deliver or drop a notification; return False if the daemon stops before."""
        if self.clock.monotonic() < self._left_out.get(notification.owner, -inf):
            return self._drop(notification, "an address of its owner has just failed")
        tries, notification = 0, self._with_curve(notification)
        while self.clock.now() - notification.at <= MAX_AGE:
            try:
                self.send(notification)
            except Undelivered as error:
                tries += 1
                if self.rule.own:
                    self._left_out[notification.owner] = self.clock.monotonic() + LEFT_OUT.total_seconds()
                log.info("notify.undelivered", way=self.rule.way, seq=notification.seq, problem=str(error))
                if error.again is RetryLater.NEVER or (error.again is RetryLater.SOME and tries >= MAX_TRIES):
                    return self._drop(notification, str(error))
            else:
                return True
            if self.pause(min(2.0 ** min(tries - 1, 10), MAX_WAIT_S)):
                return False
        return self._drop(notification, f"older than {MAX_AGE.days} day")

    def _with_curve(self, notification: Notification) -> Notification:
        try:
            return replace(notification, curve=self.curve_of(notification.job_id))
        except (RunnerError, OSError) as error:  # its directory may be gone: the rest is worth telling
            log.info("notify.no_curve", way=self.rule.way, seq=notification.seq, problem=str(error))
            return notification

    def _drop(self, notification: Notification, why: str) -> bool:
        self.dropped += 1
        log.warning(
            "notify.dropped", way=self.rule.way, seq=notification.seq, job_id=notification.job_id,
            kind=notification.kind, problem=why, dropped=self.dropped,
        )  # fmt: skip
        if self.rule.own and notification.kind != NOT_SENT:
            told = one_line(f"{notification.kind} was not sent to {self.rule.way}: {why}")
            with suppress(RunnerError, Late):  # the log says it, too
                self.note(notification.job_id, told)
        return True


@dataclass(slots=True)
class Notifications:
    """The senders of all rules, with their threads."""

    senders: tuple[Sender, ...]
    _stop: Flag = field(default_factory=Flag)
    _threads: tuple[PeriodicThread, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._threads = tuple(
            PeriodicThread(
                f"notify-{number}",
                sender.next_round_s,
                sender.run_round,
                begin_at_once=True,
                retry_s=lambda _failures: MAX_WAIT_S,
            )
            for number, sender in enumerate(self.senders)
        )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads; the next daemon sends the rest."""
        self._stop.set()
        for thread in self._threads:
            thread.stop()


def make_notifications(
    service: JobService, sender_for: Callable[[NotificationRule, Origin], Send], curve_of: CurveOf
) -> Notifications:
    """Return the senders of the rules in the settings; they are not started."""
    feed, stop = service.notification_feed, Flag()
    origin = Origin(service.store.instance, os.uname().nodename, service.settings.dashboard.url)

    def write(key: str, seq: int) -> None:
        service.daemon.run_exclusively(partial(feed.remember, key, seq))

    def note(job_id: str, text: str) -> None:
        def happen() -> None:
            if service.store.get(job_id) is not None:  # it may be pruned
                service.store.note(job_id, service.clock.now(), NOT_SENT, text)

        service.daemon.run_exclusively(happen)

    senders = (
        Sender(rule, sender_for(rule, origin), feed, service.clock, write, stop.wait, curve_of, note)
        for rule in service.settings.notify
    )
    return Notifications(tuple(senders), stop)
