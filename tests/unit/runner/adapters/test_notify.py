"""Three ways to tell somebody, with a real server, a stand-in for sendmail and real programs."""

import email
import email.policy
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import cast

import pytest

from runner.adapters.chat import SHAPES
from runner.adapters.notify import format_mail, post_webhook, sender_for
from runner.base.errors import UsageError
from runner.core.notification import Notification, ReportedCurve
from runner.core.ports.notifications import Origin, RetryLater, Undelivered
from runner.files.settings.model import load_settings
from runner.files.settings.notify import NotificationRule

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NOTICE = Notification(
    5, "7", "nächtlich", "ann", NOW, "exited", "attempt 2 ended: oom (exit 137)", "finished", "failed"
)
ORIGIN = Origin("abcd", "gpu1")


class Hook(HTTPServer):
    """A webhook that answers as it is told and keeps what it gets."""

    answer = 204
    got: list[tuple[str, str, bytes]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/in?key=1"


class Exchange(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        hook = cast("Hook", self.server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        hook.got.append((self.path, self.headers["Content-Type"], body))
        self.send_response(hook.answer)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay silent."""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook(("127.0.0.1", 0), Exchange) as server:
        server.got = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def rule(**way: object) -> NotificationRule:
    return NotificationRule.model_validate({"on": "failed", **way})


def program(directory: Path, text: str) -> str:
    path = directory / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


# --- webhooks


def test_a_webhook_gets_the_notice_as_json(hook: Hook) -> None:
    sender_for(rule(webhook=hook.url), ORIGIN)(NOTICE)
    [(path, kind, body)] = hook.got
    assert (path, kind) == ("/in?key=1", "application/json")
    assert json.loads(body) == json.loads(NOTICE.to_json("abcd", "gpu1"))
    assert json.loads(body)["link"] is None


@pytest.mark.parametrize(
    ("shape", "path", "field"),
    [
        ("slack", "/hooks/T0?key=1", "blocks"),
        ("mattermost", "/hooks/T0?key=1", "text"),
        ("ntfy", "/hooks/?key=1", "topic"),
    ],
)
def test_a_chat_service_gets_its_own_shape(hook: Hook, shape: str, path: str, field: str) -> None:
    url = hook.url.replace("/in?", "/hooks/T0?")
    sender_for(rule(webhook=url, shape=shape), ORIGIN)(NOTICE)
    [(asked, kind, body)] = hook.got
    assert (asked, kind) == (path, "application/json")
    assert json.loads(body)[field]


@pytest.mark.parametrize(
    ("answer", "again"),
    [
        (400, RetryLater.NEVER),
        (404, RetryLater.NEVER),
        (302, RetryLater.NEVER),
        (429, RetryLater.SOME),
        (503, RetryLater.SOME),
    ],
)
def test_an_answer_that_is_not_2xx_says_whether_to_try_again(
    hook: Hook, answer: int, again: RetryLater
) -> None:
    hook.answer = answer
    with pytest.raises(Undelivered, match=f"answers {answer}") as failed:
        post_webhook(hook.url, b"{}")
    assert failed.value.again is again
    assert len(hook.got) == 1  # and nothing is followed


def test_nobody_there_is_worth_waiting_for() -> None:
    with Hook(("127.0.0.1", 0), Exchange) as gone:
        url = gone.url
    with pytest.raises(Undelivered, match="refused") as failed:
        post_webhook(url, b"{}")
    assert failed.value.again is RetryLater.LONG


def test_one_that_is_silent_is_not_waited_for_for_ever() -> None:
    with Hook(("127.0.0.1", 0), Exchange) as silent, pytest.raises(Undelivered, match="timed out") as failed:
        post_webhook(silent.url, b"{}", limit_s=0.05)
    assert failed.value.again is RetryLater.LONG


def test_a_mail_links_to_the_page_of_the_job_where_there_is_one() -> None:
    linked = format_mail("ops@example.org", NOTICE, Origin("abcd", "gpu1", "https://jobs.lab.example"))
    assert linked.decode().rstrip().endswith("runner show 7\nhttps://jobs.lab.example/jobs/7")
    assert format_mail("ops@example.org", NOTICE, ORIGIN).decode().rstrip().endswith("runner show 7")


def test_a_mail_shows_what_could_move_the_cursor() -> None:
    mail = format_mail("root", replace(NOTICE, text="pip: \x1b[2J\u202edone\nis over"), ORIGIN)
    assert b"\n\npip: \\x1b[2J\\u202edone\nis over\n\n" in mail


CURVE = ReportedCurve("lo\nss", ((1, 4.0), (2, 0.5), (3, 1.25)))
WORDS = "lo\\nss 1.25 at step 3, from 0.5 to 4"


def test_a_mail_tells_the_loss_in_words_and_as_a_picture() -> None:
    notice = replace(NOTICE, curve=CURVE)
    mail = email.message_from_bytes(
        format_mail("root", notice, ORIGIN, b"drawn"), policy=email.policy.default
    )
    text, picture = mail.iter_parts()
    assert f"\ncurve:  {WORDS}\n" in text.get_content()
    assert (picture.get_content_type(), picture.get_content()) == ("image/png", b"drawn")
    plain = email.message_from_bytes(format_mail("root", NOTICE, ORIGIN), policy=email.policy.default)
    assert not plain.is_multipart()
    assert "curve:" not in plain.get_content()


@pytest.mark.parametrize("shape", ["slack", "mattermost", "ntfy"])
def test_chats_and_json_tell_the_loss(shape: str) -> None:
    notice = replace(NOTICE, curve=CURVE)
    _, body = SHAPES[shape]("http://host/topic", notice, ORIGIN)
    assert json.dumps(WORDS)[1:-1].encode() in body
    said = json.loads(notice.to_json("abcd", "gpu1"))["curve"]
    assert said == {"name": "lo\nss", "step": 3, "last": 1.25, "least": 0.5, "largest": 4.0}
    assert json.loads(NOTICE.to_json("abcd", "gpu1"))["curve"] is None


# --- settings


def test_a_rule_of_an_earlier_version_goes_on_where_it_was() -> None:
    kept = '{"on":["failed"],"who":"all","webhook":"http://host/in","mail":null,"command":null}'
    known = hashlib.sha256(kept.encode()).hexdigest()[:16]
    assert rule(webhook="http://host/in").digest == known
    assert rule(webhook="http://host/in", shape="json").digest == known
    assert rule(webhook="http://host/in", shape="slack").digest != known


def test_rules_are_read_from_the_settings_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    rules = ("{on: [failed, held], who: [ann], mail: ops@example.org}", "{on: alarm, mail: root}")
    path.write_text("notify:\n" + "".join(f"  - {each}\n" for each in rules))
    first, second = load_settings(path).notify
    assert (first.on, first.who, first.mail) == (("failed", "held"), ("ann",), "ops@example.org")
    assert (second.on, second.who) == (("alarm",), "all")
    path.write_text("notify:\n  - {on: faild, mail: root}\n")
    with pytest.raises(UsageError, match=r"notify\[0\]\.on: .*did you mean") as refused:
        load_settings(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"on": "failed"}, "needs exactly one of webhook, mail, command, channel and own"),
        ({"on": "failed", "mail": "root", "command": ["/bin/true"]}, "needs exactly one"),
        ({"on": "faild", "mail": "root"}, 'there is no event "faild"; did you mean "failed"?'),
        ({"on": [], "mail": "root"}, "at least 1 item"),
        ({"on": "failed", "webhook": "file:///etc/passwd"}, "must be an http or https address"),
        ({"on": "failed", "webhook": "http://host:port/"}, "must be an http or https address"),
        ({"on": "failed", "webhook": "http:///in"}, "must be an http or https address"),
        ({"on": "failed", "webhook": "http://host/\nHost: other"}, "must be an http or https address"),
        ({"on": "failed", "mail": "-oQ/tmp"}, "must be one mail address"),
        ({"on": "failed", "mail": "a@b, c@d"}, "must be one mail address"),
        ({"on": "failed", "command": ["notify-send"]}, "must begin with the absolute path of a program"),
        ({"on": "failed", "mail": "root", "whom": "all"}, "Extra inputs are not permitted"),
        ({"on": "failed", "mail": "root", "shape": "slack"}, "shape slack needs a webhook"),
        (
            {"on": "failed", "webhook": "http://host/in", "shape": "teams"},
            "'json', 'slack', 'mattermost' or 'ntfy'",
        ),
        ({"on": "failed", "webhook": "http://host/", "shape": "ntfy"}, "must end with a topic of ntfy"),
        ({"on": "failed", "webhook": "http://host/a.b", "shape": "ntfy"}, "must end with a topic of ntfy"),
    ],
)
def test_a_wrong_rule_is_refused(said: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match="validation error") as refused:
        NotificationRule.model_validate(said)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("way", "called"),
    [
        ({"webhook": "https://hooks.example.org/T0/secret"}, "webhook hooks.example.org"),
        ({"mail": "ops@example.org"}, "mail ops@example.org"),
        ({"command": ["/opt/tell", "--token", "secret"]}, "command /opt/tell"),
    ],
)
def test_the_log_names_a_way_without_its_secrets(way: dict[str, object], called: str) -> None:
    assert rule(**way).way == called
