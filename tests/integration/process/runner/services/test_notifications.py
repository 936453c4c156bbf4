"""Rules of notifications over a real store, with receivers that take, refuse or are not there."""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from runner.adapters.notify import sender_for
from runner.adapters.sqlite.notifications import SqliteNotificationFeed
from runner.base.errors import Unavailable
from runner.core.job.events import HoldRequested
from runner.core.notification import Notification, ReportedCurve
from runner.core.ports.notifications import Undelivered
from runner.files.settings.live import LiveSettings
from runner.files.settings.model import Settings
from runner.files.settings.notify import NotificationRule
from runner.files.submission import Submission
from runner.services.context import Caller
from runner.services.notifications import Sender, make_notifications
from tests.fakes.daemon.schedules import Clockwork
from tests.unit.runner.server.api.test_jobs import wait_until

JOB = b"workload: {kind: causal_lm, data: stdlib}\n"


@dataclass
class Receiver:
    """Takes what it gets, unless it is told to fail."""

    got: list[Notification] = field(default_factory=list)
    failures: list[Undelivered] = field(default_factory=list)

    def send(self, notification: Notification) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.got.append(notification)

    @property
    def kinds(self) -> list[str]:
        return [notification.kind for notification in self.got]


@dataclass
class Post:
    """A state directory with jobs, and one rule."""

    site: Clockwork
    receiver: Receiver = field(default_factory=Receiver)
    waited: list[float] = field(default_factory=list)
    leaves: bool = False

    def courier(self, on: str | tuple[str, ...] = ("finished", "held"), who: object = "all") -> Sender:
        rule = NotificationRule.model_validate({"on": on, "who": who, "mail": "root"})
        feed = SqliteNotificationFeed(self.site.store)
        courier = Sender(rule, self.receiver.send, feed, self.site.clock, feed.remember, self.pause)
        courier.send_next()  # it begins with what comes next
        return courier

    def pause(self, seconds: float) -> bool:
        self.waited.append(seconds)
        self.site.clock.forward(seconds)
        return self.leaves

    def submit(self) -> str:
        submission = Submission(str(self.site.directory / "job.yaml"), JOB)
        return self.site.service.submission.submit(self.site.me, submission).job.id

    def cancel(self, job_id: str) -> None:
        self.site.end(job_id)

    def hold(self, job_id: str) -> None:
        row, now = self.site.service.queries.current(job_id), self.site.clock.now()
        self.site.service.daemon.apply_event(row, HoldRequested(now, "ann"))


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(Clockwork(tmp_path, Caller(os.getuid(), os.getgid())))


def test_a_notification_has_the_loss_and_goes_out_without_it_if_that_cannot_be_read(post: Post) -> None:
    curve, problems = ReportedCurve("loss", ((1, 2.0),)), [Unavailable("the disk is away")]

    def curve_of(job_id: str) -> ReportedCurve:
        if problems:
            raise problems.pop()
        assert job_id == "2"
        return curve

    courier = post.courier("cancelled")
    courier.curve_of = curve_of
    for _ in range(2):
        post.cancel(post.submit())
    courier.send_next()
    assert [notification.curve for notification in post.receiver.got] == [None, curve]


# --- threads


def configured(post: Post, **rule: object) -> None:
    """Let the daemon have one rule."""
    service = post.site.service
    post.site.service = replace(service, live=LiveSettings(Settings.model_validate({"notify": [rule]})))


def test_each_rule_has_a_thread_that_ends(post: Post) -> None:
    told = post.site.directory / "told"
    configured(post, on="cancelled", command=["/usr/bin/tee", "-a", str(told)])
    found = make_notifications(post.site.service, sender_for)
    [courier] = found.senders
    courier.send_next()
    post.cancel(post.submit())
    found.start()
    line = wait_until(lambda: told.read_text() or None if told.exists() else None)
    assert json.loads(line)["outcome"] == "cancelled"
    wait_until(lambda: found.counts()[0][1] or None)
    assert found.counts() == (("command /usr/bin/tee", 1, 0),)
    found.stop()
    assert courier.pause(0)
