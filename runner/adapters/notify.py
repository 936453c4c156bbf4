"""Delivers notifications by webhook, by mail through the system's sendmail, or by a command.

Each way returns when the notification is delivered, or raises ``Undelivered``, which tells whether another
try may succeed.  Each has a time limit; the output of programs is discarded.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from email.message import EmailMessage
from http import HTTPStatus
from http.client import HTTPException, HTTPMessage
from typing import IO, Final
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from runner.adapters.chat import SHAPES, as_json
from runner.core.notification import Notification
from runner.core.ports.notifications import Origin, RetryLater, Send, Undelivered
from runner.files.settings.notify import SENDMAIL, NotificationRule

LIMIT_S: Final = 10.0
"""How long a webhook may be silent."""

PROGRAM_LIMIT_S: Final = 30.0
"""How long sendmail or a command may run; then it is killed with its process group."""


def sender_for(rule: NotificationRule, origin: Origin, *, sendmail: str = SENDMAIL) -> Send:
    """Return the function that delivers the notifications of a rule."""
    if rule.webhook is not None:
        url, shape = rule.webhook, SHAPES[rule.shape]
        return lambda notification: post_webhook(*shape(url, notification, origin))
    if rule.mail is not None:
        argv = (sendmail, "-i", "--", rule.mail)
        to = rule.mail
        return lambda notification: run_command(argv, format_mail(to, notification, origin))
    command = rule.command or ()
    return lambda notification: run_command(command, f"{as_json(notification, origin)}\n".encode())


# --- webhook


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect: urllib would follow with a GET without a body."""

    def redirect_request(  # noqa: PLR0913, PLR0917  urllib's signature
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Refuse the redirect."""


def post_webhook(url: str, body: bytes, limit_s: float = LIMIT_S) -> None:
    """Post a body to a webhook.

    Raises:
        Undelivered: it did not answer with 2xx.
    """
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


def format_mail(to: str, notification: Notification, origin: Origin) -> bytes:
    """Return a notification as a mail; the system's sendmail adds the sender."""
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
        "",
        *notification.text.splitlines(),
        "",
        f"runner show {notification.job_id}",
        *([link] if (link := origin.link(notification.job_id)) else []),
    ]
    message.set_content("\n".join(lines) + "\n")
    return message.as_bytes()


# --- command


def run_command(argv: Sequence[str], text: bytes, limit_s: float = PROGRAM_LIMIT_S) -> None:
    """Run a program with a text as its input.

    Raises:
        Undelivered: it did not end with exit code 0 in time.
    """
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
                raise Undelivered(f"{name}: not done after {limit_s:g} s", RetryLater.SOME) from error
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
