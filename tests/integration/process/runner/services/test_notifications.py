"""Rules of notifications over a real store, with receivers that take, refuse or are not there."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from runner.adapters.notify import sender_for
from runner.base.errors import Unavailable
from runner.core.notification import ReportedCurve
from runner.files.settings.live import LiveSettings
from runner.files.settings.model import Settings
from runner.services.context import Caller
from runner.services.notifications import make_notifications
from tests.fakes.daemon.schedules import Clockwork
from tests.unit.runner.server.api.test_jobs import wait_until
from tests.unit.runner.services.test_notifications import Post


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
    found = make_notifications(post.site.service, sender_for, lambda _: None)
    [courier] = found.senders
    courier.send_next()
    post.cancel(post.submit())
    found.start()
    line = wait_until(lambda: told.read_text() or None if told.exists() else None)
    assert json.loads(line)["outcome"] == "cancelled"
    assert courier.dropped == 0
    found.stop()
    assert courier.pause(0)
