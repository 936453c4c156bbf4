"""Delivers notifications by webhook, by mail through the system's sendmail, or by a command.

Each way returns when the notification is delivered, or raises ``Undelivered``, which tells whether another
try may succeed.  Each has a time limit; the output of programs is discarded.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from http import HTTPStatus
from http.client import HTTPException, HTTPMessage
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from runner.adapters.chat import SHAPES, as_json
from runner.base.readable import readable_duration
from runner.base.textfile import one_line
from runner.core.notification import ALARMS, DECISIONS, Notification, ReportedCurve
from runner.core.ports.notifications import Origin, RetryLater, Send, Undelivered
from runner.files.settings.notify import SENDMAIL, NotificationRule, find_channel

LIMIT_S: Final = 10.0
"""Longest silence of a webhook."""

PROGRAM_LIMIT_S: Final = 30.0
"""Longest run of sendmail or a command; then it is killed with its process group."""

PICTURE: Final = Path(__file__).with_name("curve_picture.py")
PICTURE_LIMIT_S: Final = 60.0
"""Longest time of the picture of a curve; the first one of a user takes matplotlib some seconds."""

LEAST_DRAWN: Final = 2
"""Points of a curve that make a picture."""

PNG: Final = b"\x89PNG\r\n"


def sender_for(rule: NotificationRule, origin: Origin, *, sendmail: str = SENDMAIL) -> Send:
    """Return the function that delivers the notifications of a rule."""
    if rule.webhook is not None:
        url, shape = rule.webhook, SHAPES[rule.shape]
        return lambda notification: post_webhook(*shape(url, notification, origin))
    if rule.mail is not None:
        argv = (sendmail, "-i", "--", rule.mail)
        to = rule.mail
        return lambda notification: run_command(
            argv, format_mail(to, notification, origin, _picture(notification))
        )
    if rule.channel is not None:
        return _sender_of_plugin(find_channel(rule.channel).make(rule.options), origin)
    if rule.own:
        return lambda notification: _send_own(rule, notification, origin, sendmail)
    command = rule.command or ()
    return lambda notification: run_command(command, f"{as_json(notification, origin)}\n".encode())


def _send_own(rule: NotificationRule, notification: Notification, origin: Origin, sendmail: str) -> None:
    """Deliver to the address that a job names, once: those of others wait behind it."""
    found = rule.for_job(notification.labels)
    if found is None:
        return
    try:
        sender_for(found, origin, sendmail=sendmail)(notification)
    except Undelivered as error:
        raise Undelivered(str(error), RetryLater.NEVER) from error


def _sender_of_plugin(deliver: Callable[[Notification, Origin], None], origin: Origin) -> Send:
    def send(notification: Notification) -> None:
        try:
            deliver(notification, origin)
        except Undelivered:
            raise
        except Exception as error:  # code of a plug-in: it may raise anything
            raise Undelivered(f"{type(error).__name__}: {error}", RetryLater.SOME) from error

    return send


# --- webhook


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect: urllib would follow with a GET without a body."""

    def redirect_request(  # noqa: PLR0913, PLR0917  urllib's signature
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Refuse the redirect."""


def post_webhook(url: str, body: bytes, limit_s: float = LIMIT_S) -> None:
    """Post a body to a webhook; may raise Undelivered."""
    headers = {"Content-Type": "application/json", "User-Agent": "runner"}
    request = Request(url, body, headers, method="POST")  # noqa: S310  (the settings admit http and https)
    try:
        with build_opener(_NoRedirects).open(request, timeout=limit_s):
            pass
    except HTTPError as error:
        with error:
            raise Undelivered(f"answers {error.code} {error.reason}", _retry_after(error.code)) from error
    except (URLError, TimeoutError, OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise Undelivered(f"{type(reason).__name__}: {reason}", RetryLater.LONG) from error


def _retry_after(code: int) -> RetryLater:
    later = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
    return RetryLater.SOME if code in later or code >= HTTPStatus.INTERNAL_SERVER_ERROR else RetryLater.NEVER


# --- mail


def _picture(notification: Notification) -> bytes | None:
    """Return the curve of a job as a picture, where there is one and something has been decided about it."""
    told = {notification.outcome, notification.state, notification.kind}
    wanted = notification.outcome is not None or told & {"held", *ALARMS, *DECISIONS}
    curve = notification.curve
    return draw_curve(curve) if wanted and curve and len(curve.points) >= LEAST_DRAWN else None


def draw_curve(curve: ReportedCurve, limit_s: float = PICTURE_LIMIT_S) -> bytes | None:
    """Return a curve as PNG; None without matplotlib, or if it fails.

    A process of its own draws: matplotlib takes a hundred MiB, which the daemon would keep.
    """
    if find_spec("matplotlib") is None:
        return None
    said = json.dumps({"name": curve.name, "points": curve.points}).encode()
    try:
        drawn = subprocess.run(
            [sys.executable, "-P", str(PICTURE)],
            input=said,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return drawn if drawn.startswith(PNG) else None


def format_mail(to: str, notification: Notification, origin: Origin, picture: bytes | None = None) -> bytes:
    """Return a notification as a mail, with a picture in PNG; the system's sendmail adds the sender."""
    message = EmailMessage()
    message["To"] = to
    message["Subject"] = notification.subject
    message["Date"] = notification.at
    message["Auto-Submitted"] = "auto-generated"
    lines = [
        f"job:    {notification.name} ({notification.job_id}) of {notification.owner}",
        f"host:   {origin.host}",
        f"at:     {notification.at.isoformat(timespec='seconds')}",
        f"what:   {notification.outcome or notification.state or notification.kind}",
        *([] if notification.curve is None else [f"curve:  {notification.curve.text}"]),
        "",
        *map(one_line, notification.text.splitlines()),
        "",
        f"runner show {notification.job_id}",
        *([link] if (link := origin.link(notification.job_id)) else []),
    ]
    message.set_content("\n".join(lines) + "\n")
    if picture is not None:
        message.add_attachment(picture, "image", "png", disposition="inline", filename="curve.png")
    return message.as_bytes()


# --- command


def run_command(argv: Sequence[str], text: bytes, limit_s: float = PROGRAM_LIMIT_S) -> None:
    """Run a program with a text as its input; may raise Undelivered."""
    name = argv[0]
    try:
        with subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as child:
            try:
                child.communicate(text, limit_s)
            except subprocess.TimeoutExpired as error:
                raise Undelivered(
                    f"{name}: not done after {readable_duration(limit_s)}", RetryLater.SOME
                ) from error
            finally:
                _end(child)
    except OSError as error:
        raise Undelivered(f"{name}: {error.strerror}", RetryLater.SOME) from error
    if child.returncode != 0:
        raise Undelivered(f"{name}: left with {child.returncode}", RetryLater.SOME)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a program that still runs, with its process group."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
