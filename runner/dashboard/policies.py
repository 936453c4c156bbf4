"""The page of policies: which rules recent jobs had, and how often each of them answered."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from runner.client.http import ErrorResponse
from runner.dashboard.daemon import Daemon

MOST_JOBS: Final = 100
"""Jobs whose decisions are looked at: each is a question to the daemon, of 1 to 2 ms."""

MOST_DECISIONS: Final = 200
"""Decisions of one job, the newest ones."""

MOST_NAMED: Final = 5
"""Jobs that are named with a rule, the newest ones."""

Record = Mapping[str, Any]


@dataclass(slots=True)
class RuleCount:
    """Number of times that a rule was looked at, held, and answered."""

    name: str  # empty: the runner or a person decided, not a rule
    do: str
    moment: str
    looked_at: int = 0
    held: int = 0
    unknown: int = 0
    answered: int = 0
    last: str | None = None  # when it answered
    jobs: list[str] = field(default_factory=list)


@dataclass(slots=True)
class PolicyCount:
    """The decisions of one version of a policy."""

    name: str
    digest: str
    decisions: int = 0
    jobs: set[str] = field(default_factory=set)
    rules: dict[tuple[str, str, str], RuleCount] = field(default_factory=dict)

    def add(self, job: str, record: Record) -> None:
        """Count a decision; newer ones come first, so the order of the rules is that of the newest."""
        self.decisions += 1
        self.jobs.add(job)
        moment, verdict = record["moment"], record["verdict"]
        for rule in record["rules"]:
            count = self._rule(rule["name"], rule["do"], moment)
            count.looked_at += 1
            count.held += rule["truth"] is True
            count.unknown += rule["truth"] is None
        chosen = next(
            (rule["do"] for rule in record["rules"] if rule["name"] == verdict["rule"]), verdict["do"]
        )
        answered = self._rule(verdict["rule"], chosen, moment)
        answered.answered += 1
        answered.last = answered.last or record["at"]
        if job not in answered.jobs and len(answered.jobs) < MOST_NAMED:
            answered.jobs.append(job)

    def _rule(self, name: str, do: str, moment: str) -> RuleCount:
        return self.rules.setdefault((moment, name, do), RuleCount(name, do, moment))

    @property
    def rows(self) -> list[RuleCount]:
        """The rules by moment and in their order; what no rule decided comes last."""
        return sorted(self.rules.values(), key=lambda rule: (rule.moment, not rule.name))


def policy(daemon: Daemon, _query: Mapping[str, str], _jobs: Sequence[str], _now: datetime) -> dict[str, Any]:
    """Return the policies of recent jobs, the one that was asked last first."""
    found = daemon.get("/v1/jobs", {"all": 1, "limit": MOST_JOBS})["jobs"][:MOST_JOBS]
    started = [job["id"] for job in found if job["attempt"]]
    told = {job: _decisions(daemon, job) for job in started}
    read = {job: records for job, records in told.items() if records is not None}
    return {
        "policies": count_decisions(read),
        "looked_at": len(read),
        "closed": len(started) - len(read),
    }


def _decisions(daemon: Daemon, job: str) -> Sequence[Record] | None:
    """Return the newest decisions about a job; None where they are not for this user."""
    try:
        records: list[Record] = daemon.job(job, "/decisions")["decisions"]
    except ErrorResponse:
        return None
    return records[-MOST_DECISIONS:]


def count_decisions(by_job: Mapping[str, Iterable[Record]]) -> list[PolicyCount]:
    """Return the counts of each policy, the one that was asked last first."""
    decided = [(record["at"], job, record) for job, records in by_job.items() for record in records]
    policies: dict[tuple[str, str], PolicyCount] = {}
    for _, job, record in sorted(decided, key=lambda each: each[:2], reverse=True):
        name, digest = record["policy"]["name"], record["policy"].get("digest", "")
        policies.setdefault((name, digest), PolicyCount(name, digest)).add(job, record)
    return list(policies.values())
