"""Notifications as the webhooks of chat services take them: Slack, Mattermost and ntfy.

Names and texts come from users.  They are written so that no service takes a part of them for a mention of
people, a link or markup.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from runner.base.textfile import one_line
from runner.core.notification import Notification
from runner.core.ports.notifications import Origin

Shape: TypeAlias = Callable[[str, Notification, Origin], tuple[str, bytes]]
"""Returns the address and the body of a POST for the address of a rule."""

SLACK_CHARACTERS: Final = 3000
"""The longest text of a section in Slack (docs.slack.dev, section block)."""

MATTERMOST_CHARACTERS: Final = 4000
"""Of an event's text; Mattermost splits posts of more than 16383 characters."""

NTFY_BYTES: Final = 4096
"""A longer message would be an attachment (docs.ntfy.sh, limitations)."""

URGENT: Final = frozenset({"failed", "held", "alarm", "launch_failed"})
"""Topics of notifications that ntfy shows at once and with a sound."""

_NTFY_HIGH: Final = 4
_NTFY_USUAL: Final = 3

_NTFY_TAGS: Final[Mapping[str, str]] = {
    "failed": "x",
    "alarm": "warning",
    "held": "pause_button",
    "succeeded": "white_check_mark",
}
"""Emoji of ntfy by topic; the first topic that fits."""

_MARKDOWN: Final = re.compile(r"([\\`*_\[\]<>|~])")
"""Markup within a line; what is markup at the beginning of a line does not stand there."""

_BACKTICKS: Final = re.compile(r"`+")


def as_json(notification: Notification, origin: Origin) -> str:
    """Return a notification as one line of JSON, in the runner's own shape."""
    return notification.to_json(origin.instance, origin.host, origin.link(notification.job_id))


def shape_slack(url: str, notification: Notification, origin: Origin) -> tuple[str, bytes]:
    """Return the request for an incoming webhook of Slack: a title with a link, and the text as it is."""
    text = _text(notification)[:SLACK_CHARACTERS]
    title, link = _slack_escaped(notification.subject), origin.link(notification.job_id)
    linked = title if link is None else f"<{link}|{title}>"
    about = _slack_escaped(_about(notification, origin))
    return url, _encode(
        {
            "text": f"{title}: {_slack_escaped(text)}",  # what a telephone shows
            "blocks": [
                _section({"type": "mrkdwn", "text": f"{linked}\n{about}", "verbatim": True}),
                _section({"type": "plain_text", "text": text, "emoji": False}),
            ],
            "unfurl_links": False,
        }
    )


def _section(text: Mapping[str, object]) -> dict[str, object]:
    return {"type": "section", "text": text}


def _slack_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shape_mattermost(url: str, notification: Notification, origin: Origin) -> tuple[str, bytes]:
    """Return the request for an incoming webhook of Mattermost: in a block of code nobody is mentioned."""
    text = _text(notification)[:MATTERMOST_CHARACTERS]
    title, link = _markdown_escaped(notification.subject), origin.link(notification.job_id)
    linked = f"**{title}**" if link is None else f"[{title}]({link})"
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    about = _markdown_escaped(_about(notification, origin))
    return url, _encode({"text": f"{linked}\n{about}\n{fence}text\n{text}\n{fence}"})


def _markdown_escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text)


def shape_ntfy(url: str, notification: Notification, origin: Origin) -> tuple[str, bytes]:
    """Return the request for ntfy: JSON goes to the server's first page and names the topic.

    In headers, which ntfy takes as well, names with other letters than English ones would have to be encoded.
    """
    parts = urlsplit(url)
    root, _, topic = parts.path.rpartition("/")
    topics = notification.topics
    message = {
        "topic": topic,
        "title": f"{notification.subject} on {origin.host}",
        "message": _text(notification).encode()[:NTFY_BYTES].decode(errors="ignore"),
        "priority": _NTFY_HIGH if topics & URGENT else _NTFY_USUAL,
        "tags": [tag for word, tag in _NTFY_TAGS.items() if word in topics][:1],
    }
    link = origin.link(notification.job_id)
    return urlunsplit(parts._replace(path=f"{root}/")), _encode(message | ({"click": link} if link else {}))


def _text(notification: Notification) -> str:
    """Return the event in words, with what cannot be printed made visible; never empty, as Slack wants it."""
    curve = [] if notification.curve is None else [notification.curve.text]
    return "\n".join(map(one_line, [*notification.text.splitlines(), *curve])) or notification.kind


def _about(notification: Notification, origin: Origin) -> str:
    at = notification.at.isoformat(timespec="seconds")
    return one_line(f"job of {notification.owner} on {origin.host}, {at}")


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode(errors="replace")


SHAPES: Final[Mapping[str, Shape]] = {
    "json": lambda url, notification, origin: (url, as_json(notification, origin).encode()),
    "slack": shape_slack,
    "mattermost": shape_mattermost,
    "ntfy": shape_ntfy,
}
"""The shapes of the settings, by name."""
