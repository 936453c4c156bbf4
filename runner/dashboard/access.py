"""Access control of the dashboard: a link that works once, a cookie, and the checks of each request.

Every user of a machine reaches its loopback, and a browser sends a cookie to all ports of a name.  So all
pages of a dashboard lie below a path that nobody guesses, to which the cookie belongs: no other port gets it.

A page on the web can make a browser send requests to a port of this machine.  Three things keep it out: the
cookie, which a browser does not send along with requests from other sites (``SameSite=Strict``); the names
by which the dashboard may be called, so that no other name can be pointed at it (DNS rebinding); and for
changes a token in the form, with the origin of the page compared.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

COOKIE: Final = "runner_dash"

LINK_S: Final = 600.0
"""Time for which the link is good."""

SESSION_S: Final = 12 * 3600
"""Time for which a browser is logged in."""

MOST_SESSIONS: Final = 16
"""Browsers that are logged in at once; the one that logged in first is logged out."""

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send the origin null with our own forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer: nothing foreign is loaded, nobody frames a page, nothing stays in a cache."""


class Denied(Exception):
    """A request is not answered; has the status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(slots=True)
class Access:
    """Credentials and checks that let browsers in."""

    monotonic: Callable[[], float]
    hosts: frozenset[str] = LOOPBACK
    """Names by which the dashboard may be called, without a port."""
    needs_login: bool = True
    read_only: bool = False
    place: str = field(init=False)
    """The path below which all pages lie; empty behind a proxy, which has its own login."""
    _ticket: tuple[str, float] | None = None
    _sessions: list[tuple[str, float]] = field(default_factory=list)
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def __post_init__(self) -> None:
        self.place = f"/{secrets.token_urlsafe(24)}" if self.needs_login else ""

    def new_ticket(self) -> str:
        """Return the ticket with which a link logs a browser in, once; an earlier one is void."""
        self._ticket = secrets.token_urlsafe(32), self.monotonic() + LINK_S
        return self._ticket[0]

    def log_in(self, ticket: str) -> str:
        """Return the cookie for a ticket, which is used up.

        Raises:
            Denied: it is not the present one, was used, or is too old.
        """
        known, self._ticket = self._ticket, None
        if known is None or self.monotonic() > known[1] or not _equal(ticket, known[0]):
            if known is not None and not _equal(ticket, known[0]):
                self._ticket = known  # a wrong guess does not void the right one
            raise Denied(403, "this link was used or is too old; stop runner dash and start it again")
        session = secrets.token_urlsafe(32)
        self._sessions = [*self._sessions, (session, self.monotonic() + SESSION_S)][-MOST_SESSIONS:]
        return session

    def check_host(self, host: str | None) -> None:
        """Refuse a name that is not ours.

        Raises:
            Denied: the name is another one.
        """
        name = "" if host is None else host.rpartition(":")[0] if _has_port(host) else host
        if name.lower() not in self.hosts:
            raise Denied(421, "the dashboard does not answer to this name")

    def check_session(self, cookie: str | None) -> str:
        """Return the session of a cookie.

        Raises:
            Denied: there is none, or it is too old.
        """
        if not self.needs_login:
            return "anybody"
        self._sessions = [each for each in self._sessions if self.monotonic() < each[1]]
        found = next((each for each, _ in self._sessions if _equal(cookie or "", each)), None)
        if found is None:
            raise Denied(401, "open the link that runner dash has printed")
        return found

    def check_change(self, session: str, host: str | None, origin: str | None, token: str) -> None:
        """Refuse a change that another site may have caused.

        Raises:
            Denied: the dashboard is read-only, or the change did not come from one of its own pages.
        """
        if self.read_only:
            raise Denied(403, "this dashboard is read-only")
        if origin is None or urlsplit(origin).netloc != host:
            raise Denied(403, "the change was asked for by another site")
        if not _equal(token, self.form_token(session)):
            raise Denied(403, "the page is too old; load it again")

    def form_token(self, session: str) -> str:
        """Return the token of the forms of a session."""
        return hmac.new(self._secret, session.encode(), hashlib.sha256).hexdigest()


def _equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdecimal() and not host.endswith("]")
