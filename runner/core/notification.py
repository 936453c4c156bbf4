"""Notifications: one event of a job with the topics that select it and its JSON.

A notification is made from one event of the store and has the number of that event.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, get_args

from runner.base.textfile import one_line
from runner.core.job.describe import ADVISED, SIGNALLED
from runner.core.job.events import Event
from runner.core.job.states import State
from runner.core.sweep import DECIDED, PAUSED

VERSION: Final = 1
"""Version of the JSON of a notification; new fields do not change it."""

OUTCOMES: Final = ("succeeded", "failed", "cancelled")

DECISIONS: Final = frozenset({"exited", "launch_failed", "condemned"})
"""Events that a policy has decided about."""

ALARMS: Final = frozenset({"alarm", ADVISED})
"""Events about a problem of a running job."""

NOT_SENT: Final = "not_notified"
"""Kind of the event that an owner was not told of another one where the job asks for it."""

NOTED: Final = frozenset({"submitted", SIGNALLED, "change_delivered", DECIDED, NOT_SENT, *ALARMS})
"""Events that do not change the state."""


def _kinds(union: object) -> frozenset[str]:
    kinds = (each.default for kind in get_args(union) for each in fields(kind) if each.name == "kind")
    return frozenset(str(kind) for kind in kinds)


EVENTS: Final = _kinds(Event) | NOTED
STATES: Final = _kinds(State)
TOPICS: Final = EVENTS | STATES | {*OUTCOMES, "decision", "alarm"}
"""All topics that a notification rule can name."""


@dataclass(frozen=True, slots=True)
class ReportedCurve:
    """A curve that a job has reported, as far as its notifications tell it."""

    name: str
    points: tuple[tuple[int, float], ...]
    """Steps and values; at least one."""

    @property
    def text(self) -> str:
        """The curve in words, in one line."""
        told = self.to_json()
        span = f"from {told['least']:.5g} to {told['largest']:.5g}"
        return one_line(f"{self.name} {told['last']:.5g} at step {told['step']}, {span}")

    def to_json(self) -> dict[str, Any]:
        """Return the curve as JSON values, without its points."""
        values = [value for _, value in self.points]
        step, last = self.points[-1]
        return {"name": self.name, "step": step, "last": last, "least": min(values), "largest": max(values)}


@dataclass(frozen=True, slots=True)
class Notification:
    """One event of a job."""

    seq: int
    job_id: str
    name: str
    owner: str
    at: datetime
    kind: str
    text: str
    state: str | None = None  # after the event; None: unchanged
    outcome: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    curve: ReportedCurve | None = None  # its loss, if it has reported one

    @property
    def topics(self) -> frozenset[str]:
        """The topics that select this notification."""
        said = {self.kind, self.state, self.outcome}
        said |= {"decision"} if self.kind in DECISIONS else set()
        said |= {"alarm"} if self.kind in ALARMS else set()
        said -= {"held"} if f"held: {PAUSED}" in self.text else set()  # the daemon goes on by itself
        return frozenset(word for word in said if word is not None)

    @property
    def subject(self) -> str:
        """The subject: one short line."""
        what = self.outcome or self.state or self.kind.replace("_", " ")
        return one_line(f"[runner] {self.name} ({self.job_id}) {what}")[:200]

    def to_json(self, instance: str, host: str, link: str | None = None) -> str:
        """Return the notification as one line of JSON; ``instance`` names the state directory."""
        told: dict[str, Any] = {
            "version": VERSION,
            "host": host,
            "instance": instance,
            "seq": self.seq,
            "at": self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "job": self.job_id,
            "name": self.name,
            "owner": self.owner,
            "labels": dict(self.labels),
            "kind": self.kind,
            "state": self.state,
            "outcome": self.outcome,
            "text": self.text,
            "curve": None if self.curve is None else self.curve.to_json(),
            "link": link,
        }
        return json.dumps(told)


FIELDS: Final = tuple(json.loads(Notification(0, "", "", "", datetime.min, "", "").to_json("", "")))  # noqa: DTZ901
"""Names of the fields of the JSON."""
