"""Redaction of other users' jobs: of their secret label always, of most else where ``private_jobs`` is set.

Then the id, the owner, the state, the resources and the times of a job stay visible: who waits may know
for what.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from runner.core.accounting.usage import GaveWay, Used
from runner.core.ports.store import JobRow
from runner.files.settings.notify import OWN_LABEL
from runner.server.api.views import Json
from runner.services.context import Caller
from runner.services.jobs import JobService

HIDDEN: Final = "(private)"
"""Text in place of the name of a job that a caller may not see."""

_SECRET: Final[Mapping[str, Any]] = {
    "name": HIDDEN,
    "labels": {},
    "why": "",
    "progress": None,
    "last_progress": None,
    "alarm": None,
}
"""The fields of a listed job that are hidden, with what stands in their place."""


def hide_summary(service: JobService, caller: Caller, row: JobRow, shown: Json) -> Json:
    """Return a job of a list as a caller may see it."""
    if service.queries.is_hidden(caller, row):
        return _hide(shown)
    if OWN_LABEL in row.labels and not service.queries.has_permission(caller, row):
        return {**shown, "labels": {key: text for key, text in row.labels.items() if key != OWN_LABEL}}
    return shown


def shows_only_own(service: JobService, caller: Caller, label: str | None) -> bool:
    """Return True if a label finds no jobs but those of the caller: others would tell who has it."""
    is_secret = service.settings.private_jobs or (label or "").partition("=")[0] == OWN_LABEL
    return label is not None and is_secret and not service.queries.sees_all(caller)


def hide_overview(service: JobService, caller: Caller, overview: Json) -> Json:
    """Return the overview of the machine as a caller may see it."""
    return {
        **overview,
        "jobs": [_listed(service, caller, each) for each in overview["jobs"]],
        "queue": [_listed(service, caller, each) for each in overview["queue"]],
        "devices": hide_holders(service, caller, overview["devices"]),
    }


def hide_holders(service: JobService, caller: Caller, devices: Iterable[Json]) -> list[Json]:
    """Return devices as a caller may see them: without the names of others' jobs and programs."""
    if not service.settings.private_jobs:
        return list(devices)
    return [
        {
            **device,
            "jobs": [_listed(service, caller, job) for job in device["jobs"]],
            **_processes(service, caller, device),
        }
        for device in devices
    ]


def hide_jobs(service: JobService, caller: Caller, used: Used) -> Used:
    """Return usage as a caller may see it: others' jobs by their ids alone."""
    if not service.settings.private_jobs or service.queries.sees_all(caller):
        return used
    own = service.user(caller).name
    return Used(
        tuple(each if each.user == own else replace(each, job=_hidden(each.job)) for each in used.sums),
        tuple(_nameless(each, own) for each in used.switches),
    )


def _nameless(gave_way: GaveWay, own: str) -> GaveWay:
    switch = gave_way.switch
    if switch.user != own:
        switch = replace(switch, job=_hidden(switch.job))
    job = gave_way.job if gave_way.user == own else _hidden(gave_way.job)
    return replace(gave_way, job=job, switch=switch)


def _hidden(job: str) -> str:
    return f"{job.partition(' ')[0]} {HIDDEN}"


def _processes(service: JobService, caller: Caller, device: Json) -> Json:
    if not device.get("processes"):
        return {}
    shown = []
    for process in device["processes"]:
        others = process["uid"] != caller.uid and not service.queries.sees_all(caller)
        shown.append({**process, "program": None} if others else process)
    return {"processes": shown}


def _listed(service: JobService, caller: Caller, shown: Json) -> Json:
    """Return a job that is named by its id as a caller may see it; one that is gone is hidden."""
    if not service.settings.private_jobs and OWN_LABEL not in shown.get("labels", ()):
        return shown
    entry = service.daemon.tracked_jobs.get(shown["id"])
    row = service.store.get(shown["id"]) if entry is None else entry.row
    return _hide(shown) if row is None else hide_summary(service, caller, row, shown)


def _hide(shown: Json) -> Json:
    return {name: _SECRET.get(name, value) for name, value in shown.items()}
