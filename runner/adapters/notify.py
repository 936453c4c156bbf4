"""Three ways to tell somebody: a POST, a mail through the system's sendmail, a command.

Each either returns, and the notice is delivered, or raises ``Undelivered``, which knows whether it is
worth trying again.  All have limits of time; what they print is thrown away.
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

from runner.core.notification import Notification
from runner.core.ports.notifications import Origin, RetryLater, Send, Undelivered
from runner.files.settings.notify import SENDMAIL, NotificationRule

LIMIT_S: Final = 10.0
"""How long a webhook may be silent."""

PROGRAM_LIMIT_S: Final = 30.0
"""How long sendmail or a command may run; then it is killed with all that it has started."""


def sender_for(rule: NotificationRule, origin: Origin, *, sendmail: str = SENDMAIL) -> Send:
    """Return what delivers the notices of a rule."""
    if rule.webhook is not None:
        url = rule.webhook
        return lambda notification: post_webhook(
            url, notification.to_json(origin.instance, origin.host).encode()
        )
    if rule.mail is not None:
        argv = (sendmail, "-i", "--", rule.mail)
        to = rule.mail
        return lambda notification: run_command(argv, send_mail(to, notification, origin))
    command = rule.command or ()
    return lambda notification: run_command(
        command, f"{notification.to_json(origin.instance, origin.host)}\n".encode()
    )


# --- A POST


class _NoRedirects(HTTPRedirectHandler):
    """A webhook that sends elsewhere is refused: urllib would follow with an empty GET."""

    def redirect_request(  # noqa: PLR0913, PLR0917  urllib's signature
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Follow nothing."""


def post_webhook(url: str, body: bytes, limit_s: float = LIMIT_S) -> None:
    """Send a body to a webhook, which must answer 2xx.

    Raises:
        Undelivered: it did not.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "runner"}
    request = Request(url, body, headers, method="POST")  # noqa: S310  (the settings admit http and https)
    try:
        with build_opener(_NoRedirects).open(request, timeout=limit_s):
            pass
    except HTTPError as error:
        with error:
            raise Undelivered(f"answers {error.code} {error.reason}", _after(error.code)) from error
    except (URLError, TimeoutError, OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise Undelivered(f"{type(reason).__name__}: {reason}", RetryLater.LONG) from error


def _after(code: int) -> RetryLater:
    later = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
    return RetryLater.SOME if code in later or code >= HTTPStatus.INTERNAL_SERVER_ERROR else RetryLater.NEVER


# --- A mail


def send_mail(to: str, notification: Notification, origin: Origin) -> bytes:
    """Return a notice as a mail; the sender is what the system's sendmail makes of the daemon's user."""
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
    ]
    message.set_content("\n".join(lines) + "\n")
    return message.as_bytes()


# --- A command


def run_command(argv: Sequence[str], text: bytes, limit_s: float = PROGRAM_LIMIT_S) -> None:
    """Hand a text to a program, which must leave with 0 in time.

    Raises:
        Undelivered: it did not.
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
    """Kill a program that is still there, with what it has started."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
