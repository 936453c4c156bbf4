"""The pages: the path of each, its template, and what it asks the daemon for."""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from runner.base.errors import RunnerError, UsageError
from runner.client.account_text import time_text, used_text
from runner.dashboard import charts
from runner.dashboard.daemon import Daemon
from runner.dashboard.differences import load_difference
from runner.dashboard.policies import policy
from runner.dashboard.sweeps import sweep

Values = dict[str, Any]
Load = Callable[[Daemon, Mapping[str, str], Sequence[str], datetime], Values]

PAGE_JOBS: Final = 200
"""Jobs of one page of the list."""

MOST_READ: Final = 5000
"""Jobs that a filter looks through for one page."""

TAIL_LINES: Final = 200

LAST_EVENTS: Final = 200
"""Events on the page of a job."""

MOST_DIGITS: Final = 18
"""Of a number in an address."""

MOST_COMPARED: Final = 12

USAGE_S: Final = 7 * 86400


@dataclass(frozen=True, slots=True)
class Page:
    """One page; ``title`` is its entry of the menu, empty if it has none."""

    path: str
    template: str
    title: str
    load: Load


def machine(daemon: Daemon, _query: Mapping[str, str], _jobs: Sequence[str], now: datetime) -> Values:
    """Return the devices, what runs, and the queue."""
    overview = daemon.get("/v1/overview")
    history = daemon.get("/v1/devices/history")["curves"] if overview["devices"] else {}
    strips = {
        each["uuid"]: charts.strip(history.get(f"{each['uuid']} util", []), now.timestamp())
        for each in overview["devices"]
    }
    return {"overview": overview, "strips": strips}


def jobs(daemon: Daemon, query: Mapping[str, str], _jobs: Sequence[str], _now: datetime) -> Values:
    """Return a page of the jobs that a filter accepts, the newest first."""
    found, following = _filtered(daemon, query, _whole(query.get("cursor", "")))
    kept = {key: query.get(key, "") for key in ("state", "user", "label", "text")}
    return {
        "jobs": _sorted(found, query.get("sort", "")),
        "query": kept,
        "sort": query.get("sort", ""),
        "next": None if following is None else urlencode({**kept, "cursor": following}),
        "states": ("queued", "running", "held", "succeeded", "failed", "cancelled"),
    }


def _filtered(
    daemon: Daemon, query: Mapping[str, str], cursor: int | None
) -> tuple[list[Values], int | None]:
    found: list[Values] = []
    for _ in range(MOST_READ // PAGE_JOBS):
        asked = {"all": 1, "limit": PAGE_JOBS, "label": query.get("label") or None, "cursor": cursor}
        answer = daemon.get("/v1/jobs", asked)
        found += [job for job in answer["jobs"] if _accepts(job, query)]
        cursor = answer.get("next")
        if cursor is None or len(found) >= PAGE_JOBS:
            break
    return found, cursor


def _accepts(job: Values, query: Mapping[str, str]) -> bool:
    state, user, words = query.get("state"), query.get("user"), query.get("text", "").lower()
    return (
        (not state or state in {job["state"], job["outcome"]})
        and (not user or job["owner"] == user)
        and (not words or words in f"{job['id']} {job['name']} {job['why']}".lower())
    )


def _sorted(found: list[Values], key: str) -> list[Values]:
    if key in {"name", "owner", "state"}:
        return sorted(found, key=lambda job: str(job[key]))
    if key == "since":
        return sorted(found, key=lambda job: str(job["since"]), reverse=True)
    return found


def job(daemon: Daemon, query: Mapping[str, str], _jobs: Sequence[str], now: datetime) -> Values:
    """Return everything about one job."""
    ref = query["ref"]
    found, why = daemon.job(ref), daemon.job(ref, "/why")
    curves = daemon.job(ref, "/curves")["curves"]
    account = _allowed(lambda: daemon.job(ref, "/account"))
    return {
        "job": found,
        "why": why,
        "life": life(found, now),
        "decisions": _allowed(lambda: daemon.job(ref, "/decisions")["decisions"]),
        "revisions": _allowed(lambda: daemon.job(ref, "/revisions")["revisions"]),
        "events": last_events(daemon, ref),
        "last_events": LAST_EVENTS,
        "log": _allowed(lambda: daemon.last_lines(ref, TAIL_LINES)),
        "charts": _charts({name: {found["name"]: rows} for name, rows in curves.items()}),
        "verbs": verbs(found),
        "loss": last_loss(found, curves),
        "time": time_text(account),
        "used": used_text(account),
        "code": describe_code((found.get("revision") or {}).get("code")),
        "file": json.dumps(found["revision"]["job"], indent=2) if found.get("revision") else None,
    }


def last_events(daemon: Daemon, ref: str) -> Sequence[Values]:
    """Return the last events of a job in their order; the daemon gives them from the first one on."""
    last: deque[Values] = deque(maxlen=LAST_EVENTS)
    after, following = -1, 0
    while following != after:
        after = following
        answer = daemon.get("/v1/events", {"job": ref, "after": after, "limit": 10_000})
        last += answer["events"]
        following = answer["next"]
    return last


def last_loss(found: Values, curves: Mapping[str, Sequence[charts.Row]]) -> float | None:
    """Return the loss that a job has reported last, also once it has ended; None if it has reported none."""
    said = (found["progress"] or {}).get("loss")
    known = next((curves[name] for name in ("loss", "train_loss") if curves.get(name)), None)
    return said if said is not None else None if known is None else float(known[-1][2])


def _allowed(ask: Callable[[], Any]) -> Any:  # noqa: ANN401  JSON
    """Return an answer, None if this user may not see it."""
    try:
        return ask()
    except RunnerError:
        return None


def describe_code(code: Values | None) -> str | None:
    """Return the code that a job runs, in a line; None if it is not known."""
    if not code:
        return None
    git = f"commit {code['commit'][:12]}" if code.get("commit") else "no git"
    branch = f" of {code['branch']}" if code.get("branch") else ""
    dirty = ", with changes that are not committed" if code.get("dirty") else ""
    return f"{git}{branch}{dirty}; {code.get('files')} files as they were at submission"


def verbs(found: Values) -> tuple[tuple[str, str], ...]:
    """Return the changes that make sense for a job as it is, each with its words."""
    has_saved = found["saved_step"] is not None or "saved_version" in found
    again = "Restart from the checkpoint" if has_saved else "Restart"
    match found["state"]:
        case "finished" if not has_saved:
            return (("restart", again),)
        case "finished":
            return (("restart", again), ("restart-scratch", "Restart from scratch"))
        case "held":
            return (("release", "Release"), ("cancel", "Cancel"))
        case "queued" | "preparing":
            return (("hold", "Hold"), ("cancel", "Cancel"))
        case _:
            return (("restart", again), ("hold", "Hold"), ("cancel", "Cancel"))


def life(found: Values, now: datetime) -> list[Values]:
    """Return the attempts of a job with their place on a line from the first start to now, in percent."""
    started = [each for each in found["attempts"] if each["launched_at"]]
    if not started:
        return []
    begin = datetime.fromisoformat(started[0]["launched_at"])
    ends = [each["ended_at"] for each in started]
    last = now if None in ends else max(datetime.fromisoformat(each) for each in ends if each)
    whole = max((last - begin).total_seconds(), 1.0)
    shown = []
    for each in started:
        since = datetime.fromisoformat(each["launched_at"])
        until = datetime.fromisoformat(each["ended_at"]) if each["ended_at"] else now
        shown.append(
            {
                **each,
                "at": 100 * (since - begin).total_seconds() / whole,
                "wide": max(100 * (until - since).total_seconds() / whole, 0.3),
                "seconds": (until - since).total_seconds(),
            }
        )
    return shown


def _charts(
    by_name: Mapping[str, Mapping[str, Sequence[charts.Row]]], axis: str = "step"
) -> list[charts.Chart]:
    """Return a chart per name, over steps where there are any unless time is asked for."""
    names = [*(name for name in charts.FIRST if name in by_name), *sorted(set(by_name) - set(charts.FIRST))]
    drawn = []
    for name in names:
        curves = by_name[name]
        has_steps = any(row[1] is not None for rows in curves.values() for row in rows)
        chart = charts.draw(name, curves, axis if has_steps else "time")
        if chart is not None:
            drawn.append(chart)
    return drawn


def compare(daemon: Daemon, query: Mapping[str, str], refs: Sequence[str], _now: datetime) -> Values:
    """Return the curves of several jobs, one chart per name, and what differs between two."""
    refs = [ref for each in refs for ref in each.replace(",", " ").split()]
    if len(refs) > MOST_COMPARED:
        raise UsageError(f"{len(refs)} jobs: at most {MOST_COMPARED} can be compared")
    by_name: dict[str, dict[str, Sequence[charts.Row]]] = {}
    shown: list[Values] = []
    for ref in refs:
        answer = daemon.job(ref, "/curves")
        if answer["job"] in {each["id"] for each in shown}:
            continue
        shown.append({"id": answer["job"], "name": answer["name"]})
        for name, rows in answer["curves"].items():
            by_name.setdefault(name, {})[f"{answer['name']} ({answer['job']})"] = rows
    axis = "time" if query.get("x") == "time" else "step"
    shared = [name for name, curves in by_name.items() if len(curves) == len(shown)]
    return {
        "jobs": shown,
        "charts": _charts({name: by_name[name] for name in shared}, axis),
        "refs": " ".join(refs),
        "axis": axis,
        "difference": load_difference(daemon, *(each["id"] for each in shown)) if len(shown) == 2 else None,
    }


def schedules(daemon: Daemon, _query: Mapping[str, str], _jobs: Sequence[str], _now: datetime) -> Values:
    """Return the schedules."""
    return {"schedules": daemon.get("/v1/schedules")["schedules"]}


def usage(daemon: Daemon, query: Mapping[str, str], _jobs: Sequence[str], _now: datetime) -> Values:
    """Return the usage by user."""
    by = query.get("by", "user")
    found = daemon.get("/v1/usage", {"by": by, "since_s": USAGE_S})
    switches = bool(found["total"].get("gave_way") or found["total"].get("preferred"))
    return {"usage": found, "by": by, "switches": switches}


def job_curves(daemon: Daemon, ref: str) -> str:
    """Return the curves of a job in columns, as the drawing library takes them."""
    curves = daemon.job(ref, "/curves")["curves"]
    columns = {
        name: {
            "x": [row[0] if row[1] is None else row[1] for row in rows],
            "steps": bool(rows) and rows[0][1] is not None,
            "mean": [row[2] for row in rows],
            "low": [row[3] for row in rows],
            "high": [row[4] for row in rows],
        }
        for name, rows in curves.items()
    }
    return json.dumps(columns)


def log_piece(daemon: Daemon, ref: str, query: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
    """Return bytes of a log, and headers that tell its attempt and where the next piece begins."""
    attempt, offset = _whole(query.get("attempt", "")), _whole(query.get("offset", ""))
    piece = daemon.log(ref, attempt, offset or 0)
    headers = {
        "X-Attempt": str(piece.attempt or ""),
        "X-Next-Offset": str(piece.next_offset),
        "X-Ended": str(int(piece.job_ended)),
        "X-Next-Attempt": str(piece.next_attempt or ""),
    }
    return piece.body, headers


def _whole(text: str) -> int | None:
    """Return the number that a part of an address says; None if it says none."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


PAGES: Final = (
    Page("/", "machine.html", "Machine", machine),
    Page("/jobs", "jobs.html", "Jobs", jobs),
    Page("/jobs/{ref}", "job.html", "", job),
    Page("/sweeps/{ref}", "sweep.html", "", sweep),
    Page("/compare", "compare.html", "Compare", compare),
    Page("/schedules", "schedules.html", "Schedules", schedules),
    Page("/usage", "usage.html", "Usage", usage),
    Page("/policy", "policy.html", "Policy", policy),
)
