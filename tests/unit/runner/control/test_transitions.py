"""News that comes together is written together; a run never holds two pieces of news about one job."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from runner.control.context import TrackedJob
from runner.control.messages import Call, EventReceived, Message, Observed
from runner.control.transitions import batches, record_transitions, transition
from runner.core.job.events import ImageReady
from runner.core.job.lifecycle import IllegalTransition
from runner.core.ports.store import RecordedTransition
from tests.fakes.host.machine import Host

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def news(job_id: str) -> EventReceived:
    return EventReceived(job_id, ImageReady(NOW, "img"))


def test_only_news_of_different_jobs_are_taken_together_and_the_order_stays() -> None:
    asked, seen = Call(lambda: None), Observed(0.0, ())
    messages: list[Message] = [
        news("1"), news("2"), asked, news("3"), news("4"), news("3"), seen, asked, news("5"),
    ]  # fmt: skip
    assert list(batches(messages)) == [
        [news("1"), news("2")],
        [asked],
        [news("3"), news("4")],
        [news("3")],
        [seen],
        [asked],
        [news("5")],
    ]
    assert list(batches([])) == []


def test_changes_of_several_jobs_are_written_all_or_none(host: Host) -> None:
    first, second = host.submit(), host.submit()
    entries = [host.daemon.tracked_jobs[job_id] for job_id in (first, second)]
    changes = [transition(entry, ImageReady(NOW, "img")) for entry in entries]
    broken = transition(TrackedJob(host.row(second), host.daemon.context.moment()), ImageReady(NOW, "img"))
    object.__setattr__(broken, "after", None)
    with pytest.raises(AttributeError):
        record_transitions(host.store, [changes[0], broken])
    assert (host.state(first), host.state(second)) == ("preparing", "preparing")
    record_transitions(host.store, changes)
    assert (host.state(first), host.state(second)) == ("queued", "queued")
    with pytest.raises(IllegalTransition):
        transition(TrackedJob(host.row(first), host.daemon.context.moment()), ImageReady(NOW, "img"))


def test_news_about_one_job_that_is_late_holds_nobody_up(host: Host) -> None:
    ids = [host.submit(f"j{number}") for number in range(3)]
    for job_id in (*ids, "99"):
        host.daemon.inbox.put(news(job_id))
    host.daemon.run_once(0)
    for job_id in ids:
        host.daemon.inbox.put(news(job_id))
    host.daemon.run_once(0)
    assert {host.state(job_id) for job_id in ids} == {"starting"}


def test_what_cannot_be_written_together_is_tried_one_by_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [host.submit(f"j{number}") for number in range(3)]
    record_all = host.store.record_all

    def fussy(changes: Sequence[RecordedTransition]) -> None:
        if ids[1] in {change.after.id for change in changes}:
            raise ValueError("one of them is broken")
        record_all(changes)

    monkeypatch.setattr(host.store, "record_all", fussy)
    for job_id in ids:
        host.daemon.inbox.put(news(job_id))
    host.daemon.run_once(0)
    assert [host.state(job_id) for job_id in ids] == ["starting", "preparing", "starting"]
