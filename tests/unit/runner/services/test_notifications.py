"""Rules of notifications over a real store, with receivers that take, refuse or are not there."""

import json
import os
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from runner.adapters.sqlite.notifications import SqliteNotificationFeed
from runner.core.job.describe import describe_decision
from runner.core.job.events import HoldRequested, ReleaseRequested
from runner.core.job.model import Job
from runner.core.job.states import Held
from runner.core.notification import DECISIONS, EVENTS, FIELDS, NOT_SENT, NOTED, STATES, TOPICS, Notification
from runner.core.ports.notifications import RetryLater, Undelivered
from runner.core.sweep import paused_text
from runner.files.revision import parse_revision
from runner.files.settings.live import LiveSettings
from runner.files.settings.notify import NotificationRule
from runner.files.submission import Submission
from runner.services.context import Caller
from runner.services.notifications import (
    BATCH,
    MAX_AGE,
    MAX_TRIES,
    MAX_UNRECORDED,
    Sender,
    make_notifications,
)
from tests.fakes.daemon.schedules import Clockwork

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


# --- to whom: an address of the job's owner

OWN = NotificationRule.model_validate(
    {"on": "finished", "own": ["@lab.example", "https://ntfy.lab.example/"], "shape": "ntfy"}
)


@pytest.mark.parametrize(
    ("said", "way"),
    [
        ("ann@lab.example", "mail ann@lab.example"),
        ("https://ntfy.lab.example/ann", "webhook ntfy.lab.example"),
        ("ann@lab.example.org", None),
        ("ann@other.example", None),
        ("-x@lab.example", None),
        ("ann@lab.example,eve@other.example", None),
        ("http://ntfy.lab.example/ann", None),
        ("https://ntfy.lab.example", None),
        ("https://ntfy.lab.example@other.example/ann", None),
        ("https://ntfy.lab.example/../admin", None),
        ("https://ntfy.lab.example/%2e%2E/admin", None),
        ("https://ntfy.lab.example/a/%2e./ann", None),
        ("https://ntfy.lab.example/a%2fann", None),
        ("https://ntfy.lab.example/a\\ann", None),
        ("https://ntfy.lab.example/a b", None),
        ("https://ntfy.lab.example/", None),
        ("root", None),
        ("", None),
    ],
)
def test_a_job_is_told_where_it_says_if_the_operator_allows_it(said: str, way: str | None) -> None:
    found = OWN.for_job({"notify": said})
    assert (None if found is None else found.way) == way
    assert OWN.for_job({}) is None


@pytest.mark.parametrize("own", ["lab.example", "https://ntfy.lab.example", "@", "*"])
def test_what_is_allowed_is_a_domain_or_the_beginning_of_an_address(own: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        NotificationRule.model_validate({"on": "finished", "own": [own]})


def test_only_jobs_that_name_an_allowed_address_are_told(post: Post) -> None:
    feed = SqliteNotificationFeed(post.site.store)
    courier = Sender(OWN, post.receiver.send, feed, post.site.clock, feed.remember, post.pause)
    courier.send_next()
    for label in ("ann@lab.example", "ann@other.example"):
        job = JOB + f"labels: {{notify: {label}}}\n".encode()
        submission = Submission(str(post.site.directory / "job.yaml"), job)
        post.cancel(post.site.service.submission.submit(post.site.me, submission).job.id)
    courier.send_next()
    assert [each.labels["notify"] for each in post.receiver.got] == ["ann@lab.example"]


def test_an_owner_whose_address_fails_is_left_out_so_that_others_do_not_wait(post: Post) -> None:
    feed = SqliteNotificationFeed(post.site.store)
    failing = [Undelivered("silent", RetryLater.NEVER)] * 2
    receiver = Receiver(failures=list(failing))
    noted: list[tuple[str, str]] = []
    courier = Sender(
        OWN, receiver.send, feed, post.site.clock, feed.remember, post.pause,
        note=lambda *told: noted.append(told),
    )  # fmt: skip
    courier.send_next()

    def ends() -> None:
        job = JOB + b"labels: {notify: ann@lab.example}\n"
        submission = Submission(str(post.site.directory / "job.yaml"), job)
        post.cancel(post.site.service.submission.submit(post.site.me, submission).job.id)

    ends()
    ends()
    courier.send_next()
    assert (len(receiver.failures), courier.dropped) == (1, 2)  # the second was not tried
    assert noted == [
        ("1", "cancel_requested was not sent to label notify: silent"),
        ("2", "cancel_requested was not sent to label notify: an address of its owner has just failed"),
    ]
    receiver.failures.clear()
    post.site.clock.forward(61)
    ends()
    courier.send_next()
    assert [each.job_id for each in receiver.got] == ["3"]


def test_what_an_owner_did_not_get_is_among_the_events_of_the_job_and_is_no_event_to_send(post: Post) -> None:
    everything = OWN.model_copy(update={"on": ("finished", NOT_SENT)})
    settings = post.site.service.settings.model_copy(update={"notify": (everything,)})
    service = replace(post.site.service, live=LiveSettings(settings))
    receiver = Receiver(failures=[Undelivered("answers 410 \x1b[2J", RetryLater.NEVER)] * 9)
    [courier] = make_notifications(service, lambda _rule, _origin: receiver.send, lambda _: None).senders
    courier.send_next()
    job = JOB + b"labels: {notify: ann@lab.example}\n"
    row = service.submission.submit(post.site.me, Submission(str(post.site.directory / "job.yaml"), job))
    post.cancel(row.job.id)
    for _ in range(3):
        courier.send_next()
    [told] = post.site.store.noted(row.job.id, NOT_SENT)
    assert told.startswith("cancel_requested was not sent to label notify: answers 410 ")
    assert "\x1b" not in told


def test_an_address_that_no_rule_allows_is_a_warning_at_submission(post: Post) -> None:
    submission = post.site.service.submission
    settings = submission.context.settings.model_copy(update={"notify": (OWN,)})
    submission = replace(submission, context=replace(submission.context, live=LiveSettings(settings)))
    warned = []
    for address in ("ann@lab.example", "ann@other.example"):
        job = JOB + f"labels: {{notify: {address}}}\n".encode()
        row = submission.submit(post.site.me, Submission(str(post.site.directory / "job.yaml"), job))
        found = submission.warnings(parse_revision(row.revision))
        warned.append([line for line in found if line.startswith("labels.notify")])
    allowed = "@lab.example, https://ntfy.lab.example/"
    assert warned == [[], [f"labels.notify: nothing is sent there; the operator allows {allowed}"]]


# --- what is told


def test_a_rule_gets_what_it_asks_for_in_order_and_once(post: Post) -> None:
    courier = post.courier()
    first, second = post.submit(), post.submit()
    post.hold(first)
    post.cancel(second)
    courier.send_next()
    courier.send_next()
    assert [(n.job_id, n.state, n.outcome) for n in post.receiver.got] == [
        (first, "held", None),
        (second, "finished", "cancelled"),
    ]


def test_what_happened_before_the_clock_was_set_back_is_told(post: Post) -> None:
    courier, first = post.courier(), post.submit()
    post.hold(first)
    post.site.clock.jump(-3600)
    courier.send_next()
    assert [each.job_id for each in post.receiver.got] == [first]


def test_what_has_moved_on_meanwhile_is_told_as_it_was(post: Post) -> None:
    courier = post.courier()
    job_id = post.submit()
    post.hold(job_id)
    row, now = post.site.service.queries.current(job_id), post.site.clock.now()
    post.site.service.daemon.apply_event(row, ReleaseRequested(now, "ann"))
    courier.send_next()
    assert [n.state for n in post.receiver.got] == ["held"]


def test_a_rule_is_about_the_jobs_of_those_that_it_names(post: Post) -> None:
    others, mine = post.courier("submitted", ("nobody-here",)), post.courier("submitted", (me(post),))
    post.submit()
    others.send_next()
    assert post.receiver.got == []
    mine.send_next()
    assert post.receiver.kinds == ["submitted"]


def me(post: Post) -> str:
    return post.site.service.submission.owner(post.site.me).name


@pytest.mark.parametrize(
    ("notification", "words"),
    [
        (("exited", "finished", "failed"), {"exited", "finished", "failed", "decision"}),
        (("exited", "queued", None), {"exited", "queued", "decision"}),
        (("alarm", None, None), {"alarm"}),
        (("advised", None, None), {"advised", "alarm"}),
        (("submitted", None, None), {"submitted"}),
    ],
)
def test_a_notice_answers_to_its_event_its_state_and_what_they_mean(
    post: Post, notification: tuple[str, str | None, str | None], words: set[str]
) -> None:
    kind, state, outcome = notification
    at = post.site.clock.now()
    assert Notification(1, "7", "nightly", "ann", at, kind, "", state, outcome).topics == words
    assert words <= TOPICS


def test_a_pause_of_a_candidate_is_no_held_job_that_waits_for_somebody(post: Post) -> None:
    at = post.site.clock.now()
    for why, words in ((paused_text(100), set()), ("held by ann", {"held"})):
        text = f"attempt 1 exited with code 75: {describe_decision(Job('7', Held(at, why)))}"
        notification = Notification(1, "7", "rate-1", "ann", at, "exited", text, "held")
        assert notification.topics == {"exited", "decision", *words}


def test_the_words_are_those_of_events_and_states() -> None:
    assert {"exited", "launch_failed", "placed"} <= EVENTS
    assert {"queued", "running", "held", "finished"} <= STATES
    assert DECISIONS | NOTED <= EVENTS


def test_a_notice_as_json_is_one_line_with_everything(post: Post) -> None:
    courier = post.courier("cancelled")
    post.cancel(post.submit())
    courier.send_next()
    [notification] = post.receiver.got
    line = notification.to_json("abcd", "gpu1")
    said = json.loads(line)
    assert "\n" not in line
    assert tuple(said) == FIELDS
    assert (said["host"], said["instance"], said["version"]) == ("gpu1", "abcd", 1)
    assert (said["job"], said["name"], said["owner"]) == ("1", "job", me(post))
    assert (said["kind"], said["state"], said["outcome"]) == ("cancel_requested", "finished", "cancelled")
    assert said["at"] == "2030-01-01T00:00:00.000Z"
    assert said["text"].startswith("cancel requested by ann")


def test_a_subject_is_one_short_line_whatever_the_job_is_called(post: Post) -> None:
    notification = Notification(1, "7", "a\r\nBcc: all", "ann", post.site.clock.now(), "launch_failed", "")
    assert notification.subject == "[runner] a\\r\\nBcc: all (7) launch failed"
    assert len(replace(notification, name="n" * 500).subject) == 200


# --- restarts


def test_a_new_rule_begins_with_what_comes_next(post: Post) -> None:
    post.cancel(post.submit())
    post.courier().send_next()
    assert post.receiver.got == []


def test_a_restart_loses_nothing_and_tells_nothing_twice(post: Post) -> None:
    courier = post.courier()
    post.cancel(post.submit())
    courier.send_next()
    post.cancel(post.submit())  # nobody looks before the end
    post.site.boot()
    post.courier().send_next()
    assert [n.job_id for n in post.receiver.got] == ["1", "2"]


def test_a_kill_between_telling_and_writing_so_tells_one_notice_twice(post: Post) -> None:
    courier = post.courier()
    post.cancel(post.submit())

    def killed(_key: str, _seq: int) -> None:
        raise KeyboardInterrupt

    courier.write = killed
    with pytest.raises(KeyboardInterrupt):
        courier.send_next()
    post.site.boot()
    post.courier().send_next()
    assert [n.seq for n in post.receiver.got] == [post.receiver.got[0].seq] * 2


def test_a_store_that_cannot_be_written_is_no_reason_to_tell_nothing(post: Post) -> None:
    courier = post.courier()

    def stuck(_key: str, _seq: int) -> None:
        raise Late

    courier.write = stuck
    for _ in range(2):
        post.cancel(post.submit())
    courier.send_next()
    assert len(post.receiver.got) == 2


def test_how_far_it_has_got_is_written_now_and_then_even_when_nobody_wants_it(post: Post) -> None:
    courier = post.courier("alarm")
    job_id = post.submit()
    for number in range(MAX_UNRECORDED):
        post.site.store.note(job_id, post.site.clock.now(), "signal_requested", str(number))
    while courier.send_next():
        pass
    assert courier.feed.told(courier.key) == MAX_UNRECORDED
    assert courier.feed.newest() == MAX_UNRECORDED + 1


def test_many_events_are_taken_in_pieces(post: Post) -> None:
    courier = post.courier("signal_requested")
    job_id = post.submit()
    for number in range(BATCH + 1):
        post.site.store.note(job_id, post.site.clock.now(), "signal_requested", str(number))
    assert courier.send_next() is True
    assert courier.send_next() is False
    assert [n.text for n in post.receiver.got] == [str(number) for number in range(BATCH + 1)]


def test_a_rule_that_says_something_else_is_another(post: Post) -> None:
    keys = {post.courier(on).key for on in ("held", "failed", ("held", "failed"))}
    assert len(keys) == 3


# --- receivers that do not take it


def test_it_is_tried_again_with_longer_and_longer_waits(post: Post) -> None:
    courier = post.courier()
    post.receiver.failures = [Undelivered("answers 503", RetryLater.SOME)] * 3
    post.cancel(post.submit())
    courier.send_next()
    assert post.waited == [1, 2, 4]
    assert (len(post.receiver.got), courier.dropped) == (1, 0)


def test_what_a_receiver_does_not_take_is_dropped_and_the_next_is_told(post: Post) -> None:
    courier = post.courier()
    post.receiver.failures = [Undelivered("answers 503", RetryLater.SOME)] * MAX_TRIES
    for _ in range(2):
        post.cancel(post.submit())
    courier.send_next()
    assert (len(post.receiver.got), courier.dropped) == (1, 1)
    assert len(post.waited) == MAX_TRIES - 1


def test_what_a_receiver_refuses_is_not_tried_again(post: Post) -> None:
    courier = post.courier()
    post.receiver.failures = [Undelivered("answers 404", RetryLater.NEVER)]
    post.cancel(post.submit())
    courier.send_next()
    assert (courier.dropped, post.waited) == (1, [])


def test_a_receiver_that_is_gone_is_waited_for_up_to_a_day(post: Post) -> None:
    courier = post.courier()
    gone = Undelivered("ConnectionRefusedError", RetryLater.LONG)
    post.receiver.failures = [gone] * 100
    post.cancel(post.submit())
    courier.send_next()
    assert (len(post.receiver.got), courier.dropped) == (1, 0)
    assert max(post.waited) == 60
    post.receiver.failures = [gone] * 10_000
    post.cancel(post.submit())
    courier.send_next()
    assert courier.dropped == 1
    assert sum(post.waited) > MAX_AGE / timedelta(seconds=1)


def test_what_is_older_than_a_day_is_dropped_untried(post: Post) -> None:
    courier = post.courier()
    post.cancel(post.submit())
    post.site.clock.forward(MAX_AGE.total_seconds() + 1)
    courier.send_next()
    assert (post.receiver.got, courier.dropped) == ([], 1)


def test_a_daemon_that_leaves_while_it_waits_leaves_the_notice_to_the_next_one(post: Post) -> None:
    courier = post.courier()
    post.receiver.failures = [Undelivered("gone", RetryLater.LONG)]
    post.cancel(post.submit())
    post.leaves = True
    courier.send_next()
    assert post.receiver.got == []
    post.leaves = False
    post.site.boot()
    post.courier().send_next()
    assert post.receiver.kinds == ["cancel_requested"]


def test_what_could_not_be_told_for_an_unexpected_error_is_told_at_the_next_look(post: Post) -> None:
    courier = post.courier()
    post.cancel(post.submit())
    mistakes = [ZeroDivisionError("division by zero")]

    def wrong(notification: Notification) -> None:
        if mistakes:
            raise mistakes.pop()
        post.receiver.send(notification)
        post.leaves = True

    courier.send = wrong
    with pytest.raises(ZeroDivisionError):
        courier.run_round()
    courier.run_round()
    assert post.receiver.kinds == ["cancel_requested"]
