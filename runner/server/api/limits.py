"""Limits of the daemon's work for one person in a second: requests, and bytes of sessions.

What is over waits.  A request that would wait for long is refused with 429 and the time after which to ask
again, before anything is done for it.  The daemon's own user has no limit: it could stop the daemon as well.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable
from typing import Any, Final

from runner.adapters.host.users import SUBORDINATE_IDS
from runner.files.settings.model import Settings
from runner.server.api.audit import Application, Receive, Scope, Send
from runner.server.api.peer import peer_uid, too_many

BURST_S: Final = 4.0
"""Time over which a person's unused requests add up; they may be made at once."""

REQUESTS_BURST_S: Final = 10.0
"""The same for requests: a command in a loop is many requests at once, and then none for long."""

LONGEST_WAIT_S: Final = 1.0
"""A request that would wait longer is refused after this time; sooner, its client would only ask again."""

MOST_KNOWN: Final = 4096
"""People whose use is remembered; it is forgotten after the burst anyway."""


def is_limited(uid: int) -> bool:
    """Return True if a user has limits: all but the daemon's own."""
    return uid != os.geteuid()


class Pace:
    """Requests and bytes that each person may take a second on average."""

    def __init__(self, burst_s: float = BURST_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst_s, self._clock = burst_s, clock
        self._due: dict[int, float] = {}  # when all that was taken will have been earned, by the uid

    def wait_s(self, person: int) -> float:
        """Return the seconds that a person has to wait until more may be taken."""
        return max(0.0, self._due.get(person, 0.0) - self._burst_s - self._clock())

    def take(self, person: int, amount: float, per_s: float) -> None:
        """Count what a person takes."""
        now = self._clock()
        if len(self._due) >= MOST_KNOWN:
            self._due = {uid: due for uid, due in self._due.items() if due > now}
        self._due[person] = max(now, self._due.get(person, now)) + amount / per_s


class RequestLimit:
    """Middleware that lets the requests of a person who asks too often wait, and refuses what is too much."""

    def __init__(self, app: Application, settings: Callable[[], Settings]) -> None:
        self._app, self._settings = app, settings
        self._pace = Pace(REQUESTS_BURST_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on in time, or refuse it."""
        uid = peer_uid(scope["client"])
        person, per_s = SUBORDINATE_IDS.person(uid), self._settings().requests_per_s
        if per_s is None or not is_limited(uid):
            await self._app(scope, receive, send)
            return
        wait_s = self._pace.wait_s(person)
        if wait_s > LONGEST_WAIT_S and scope["type"] == "http":
            await asyncio.sleep(LONGEST_WAIT_S)
            await _refuse(
                send, f"uid {person} asks more than {per_s:g} times a second (requests_per_s)", wait_s
            )
            return
        self._pace.take(person, 1, per_s)
        await asyncio.sleep(wait_s)
        await self._app(scope, receive, send)


async def _refuse(send: Send, fact: str, wait_s: float) -> None:
    body, after = too_many(f"{fact}; try again"), str(math.ceil(wait_s))
    headers = {"content-type": "application/json", "content-length": str(len(body)), "retry-after": after}
    coded: list[Any] = [(name.encode(), text.encode()) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": 429, "headers": coded})
    await send({"type": "http.response.body", "body": body})
