"""What has happened to a job, as it is told: which words it answers to, and how it reads.

Pure: no store, no network.  A notice is made of one event of the store, and numbered as that is.
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

VERSION: Final = 1
"""Of the shape of a notice's JSON; new fields do not change it."""

OUTCOMES: Final = ("succeeded", "failed", "cancelled")

DECISIONS: Final = frozenset({"exited", "launch_failed", "condemned"})
"""Events that a policy was asked about."""

ALARMS: Final = frozenset({"alarm", ADVISED})
"""Events that say that something about a running job is not as it should be."""

NOTED: Final = frozenset({"submitted", SIGNALLED, "change_delivered", *ALARMS})
"""Events that change no state."""


def _kinds(union: object) -> frozenset[str]:
    kinds = (each.default for kind in get_args(union) for each in fields(kind) if each.name == "kind")
    return frozenset(str(kind) for kind in kinds)


EVENTS: Final = _kinds(Event) | NOTED
STATES: Final = _kinds(State)
TOPICS: Final = EVENTS | STATES | {*OUTCOMES, "decision", "alarm"}
"""Everything that can be asked for."""


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
    state: str | None = None  # that it has led to; None: it is the same as before
    outcome: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> frozenset[str]:
        """Everything that it answers to."""
        said = {self.kind, self.state, self.outcome}
        said |= {"decision"} if self.kind in DECISIONS else set()
        said |= {"alarm"} if self.kind in ALARMS else set()
        return frozenset(word for word in said if word is not None)

    @property
    def subject(self) -> str:
        """What it says in one short line."""
        what = self.outcome or self.state or self.kind.replace("_", " ")
        return one_line(f"[runner] {self.name} ({self.job_id}) {what}")[:200]

    def to_json(self, instance: str, host: str) -> str:
        """Return it as one line of JSON; ``instance`` names the state directory."""
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
        }
        return json.dumps(told)


FIELDS: Final = tuple(json.loads(Notification(0, "", "", "", datetime.min, "", "").to_json("", "")))  # noqa: DTZ901
"""Names of the fields of a notice's JSON."""
