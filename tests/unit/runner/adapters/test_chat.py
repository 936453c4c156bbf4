"""Messages to Slack, Mattermost and ntfy; users cannot make more of them than text."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from runner.adapters.chat import MATTERMOST_CHARACTERS, NTFY_BYTES, SHAPES, SLACK_CHARACTERS
from runner.core.notification import Notification
from runner.core.ports.notifications import Origin

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NOTICE = Notification(
    5, "7", "nightly", "ann", NOW, "exited", "attempt 2 ended: oom (exit 137)", "finished", "failed"
)
ORIGIN = Origin("abcd", "gpu1", "https://jobs.lab.example")
SILENT = Origin("abcd", "gpu1")
URL = "https://chat.example.org/hooks/T0?auth=x"
HOSTILE = "<!channel> @all *x* [a](http://evil) ``` & \x1b[31m\u202e\nsecond"


def sent(
    shape: str, notification: Notification = NOTICE, origin: Origin = ORIGIN
) -> tuple[str, dict[str, Any]]:
    url, body = SHAPES[shape](URL, notification, origin)
    return url, json.loads(body)


def test_slack_gets_a_linked_title_and_the_text() -> None:
    url, message = sent("slack")
    title, text = (block["text"] for block in message["blocks"])
    assert url == URL
    assert title["text"] == (
        "<https://jobs.lab.example/jobs/7|[runner] nightly (7) failed>\n"
        "job of ann on gpu1, 2030-01-01T00:00:00+00:00"
    )
    assert text == {"type": "plain_text", "text": NOTICE.text, "emoji": False}
    assert message["text"] == f"[runner] nightly (7) failed: {NOTICE.text}"


def test_without_a_dashboard_there_is_no_link() -> None:
    [title, _] = sent("slack", origin=SILENT)[1]["blocks"]
    assert title["text"]["text"].startswith("[runner] nightly (7) failed\n")
    assert sent("mattermost", origin=SILENT)[1]["text"].startswith("**\\[runner\\] nightly (7) failed**\n")
    assert "click" not in sent("ntfy", origin=SILENT)[1]
    assert sent("json", origin=SILENT)[1]["link"] is None
    assert sent("json")[1]["link"] == "https://jobs.lab.example/jobs/7"


def test_mattermost_gets_a_linked_title_and_the_text_as_code() -> None:
    url, message = sent("mattermost")
    assert url == URL
    assert message["text"].splitlines() == [
        "[\\[runner\\] nightly (7) failed](https://jobs.lab.example/jobs/7)",
        "job of ann on gpu1, 2030-01-01T00:00:00+00:00",
        "```text",
        NOTICE.text,
        "```",
    ]


@pytest.mark.parametrize(
    ("changes", "priority", "tags"),
    [
        ({}, 4, ["x"]),
        ({"outcome": "succeeded"}, 3, ["white_check_mark"]),
        ({"outcome": None, "state": "held"}, 4, ["pause_button"]),
        ({"outcome": None, "state": None, "kind": "alarm"}, 4, ["warning"]),
        ({"outcome": None, "state": "running", "kind": "launched"}, 3, []),
    ],
)
def test_ntfy_gets_the_topic_and_how_urgent_it_is(
    changes: dict[str, Any], priority: int, tags: list[str]
) -> None:
    url, message = sent("ntfy", replace(NOTICE, **changes))
    assert url == "https://chat.example.org/hooks/?auth=x"
    assert (message["topic"], message["priority"], message["tags"]) == ("T0", priority, tags)
    assert message["message"] == NOTICE.text
    assert message["click"] == "https://jobs.lab.example/jobs/7"
    assert message["title"].endswith(" on gpu1")


def test_users_mention_nobody_and_write_no_markup() -> None:
    hostile = replace(NOTICE, name=HOSTILE, owner=HOSTILE, text=HOSTILE)
    message = sent("slack", hostile)[1]
    title, text = (block["text"] for block in message["blocks"])
    assert title["text"].count("<") == 1  # the link of the title alone
    assert "<" not in message["text"]
    assert text["type"] == "plain_text"
    post = sent("mattermost", hostile)[1]["text"]
    assert post.endswith(f"````text\n{text['text']}\n````")
    assert "[a]" not in post.partition("````text")[0]
    for shape in ("slack", "mattermost", "ntfy"):
        assert not {"\x1b", "\u202e"} & set(json.dumps(sent(shape, hostile)[1], ensure_ascii=False))


def test_long_texts_are_cut_where_a_service_would_refuse_them() -> None:
    long = replace(NOTICE, text="é" * 20_000)
    assert sent("slack", long)[1]["blocks"][1]["text"]["text"] == "é" * SLACK_CHARACTERS
    assert sent("mattermost", long)[1]["text"].count("é") == MATTERMOST_CHARACTERS
    assert sent("ntfy", replace(NOTICE, text="aé" * 20_000))[1]["message"].encode()[-1:] == b"a"
    assert len(sent("ntfy", long)[1]["message"].encode()) == NTFY_BYTES


def test_an_event_without_words_is_named() -> None:
    assert sent("slack", replace(NOTICE, text=""))[1]["blocks"][1]["text"]["text"] == "exited"
