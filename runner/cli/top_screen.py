"""The screen of ``runner top`` as lines of text.

An overview and a size go in, lines come out. No line is wider than the screen, and no screen exceeds
the given height: rows that do not fit are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from runner.base.readable import readable_count, readable_duration
from runner.cli import formatting
from runner.cli.console import harmless
from runner.cli.table import BOLD, PLAIN, STATE_COLOURS, Cell, Style, Table, format_line, format_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Json = dict[str, Any]

GIB: Final = 1024**3

QUIET_S: Final = 60.0
"""A report older than this is no longer the pace of a job."""


def format_screen(
    overview: Json, size: tuple[int, int], style: Style = PLAIN, etas: Mapping[str, float] | None = None
) -> list[str]:
    """Return the lines of one screen of ``size`` (columns, lines); a height of 0 is no limit.

    ``etas`` are the estimated remaining seconds by job id, for jobs with a known rate.
    """
    width, height = size
    now = formatting.unix(overview["at"])
    tables = [
        make_device_table(overview, style),
        make_job_table(overview, now, etas or {}),
        make_queue_table(overview, now),
    ]
    head = [format_line(make_headline(overview), width, style)]
    shown = _share_lines(tables, height - len(head)) if height else [len(each.rows) for each in tables]
    lines = list(head)
    for table, rows in zip(tables, shown, strict=True):
        lines += ["", *format_table(table, width, style, shown=rows)]
    return lines[:height] if height else lines


def make_headline(overview: Json) -> tuple[Cell, ...]:
    """Return one line with the time and the totals."""
    devices, jobs = overview["devices"], overview["jobs"]
    states = [each.get("state", "free") for each in devices]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    cpus, memory = overview["cpus"], overview["memory_bytes"]
    holding = sum(each["state"] in {"starting", "running", "stopping"} for each in jobs)
    parts = [
        f"{readable_count(len(devices), 'device')}{': ' if counted else ''}{counted}",
        f"{holding} running, {overview['queue_length']} waiting",
        f"cpus {cpus['lent']:g}" + ("" if cpus["total"] is None else f"/{cpus['total']:g}"),
        f"memory {memory['lent'] / GIB:.0f}"
        + (" GiB" if memory["total"] is None else f"/{memory['total'] / GIB:.0f} GiB"),
    ]
    return (Cell(f"{overview['at'][11:19]} UTC", BOLD), Cell("  ".join(parts)))


def make_device_table(overview: Json, style: Style = PLAIN) -> Table:
    """Return the table of devices."""
    rows = tuple(_device(each, style) for each in overview["devices"])
    columns = ("DEVICE", "MODEL", "UTILISATION", "MEMORY", "TEMP", "POWER", "STATE", "JOB", "OWNER OR REASON")
    spare = ("POWER", "TEMP", "MODEL", "JOB")
    return Table(columns, rows, empty="no GPUs: jobs run on cpus", spare=spare)


def _device(device: Json, style: Style) -> tuple[Cell, ...]:
    state = str(device.get("state", "free"))
    util, share, holders = device.get("util"), _share(device), device.get("jobs") or []
    return (
        Cell(_text(device.get("name") or device["uuid"])),
        Cell(_short(_text(device.get("model")))),
        _bar(None if util is None else util / 100, style, low_is_bad=state == "allocated"),
        Cell(_memory(device, share), right=True),
        Cell(_unit(device.get("temperature_c"), "C"), _hot(device.get("temperature_c")), right=True),
        Cell(_unit(device.get("power_w"), "W"), right=True),
        Cell(state, STATE_COLOURS.get(state, "")),
        Cell(_text(", ".join(each["id"] for each in holders))),
        _whose(device, state, holders),
    )


def _whose(device: Json, state: str, holders: Iterable[Json]) -> Cell:
    """Return the holders of a device and foreign processes on it, or the reason why it is not available."""
    if state != "allocated":
        return Cell(_text(device.get("reason")))
    strangers = formatting.intruders(device)
    return Cell(_text("; ".join(filter(None, (_owners(holders), strangers)))), "31" if strangers else "")


def _owners(holders: Iterable[Json]) -> str:
    return ", ".join(dict.fromkeys(each["owner"] for each in holders))


def _share(device: Json) -> float | None:
    """Return the used share of a device's memory, from the figure that the driver reports."""
    used, total = device.get("used_bytes"), device.get("memory_bytes")
    return used / total if used is not None and total else device.get("memory")


def _memory(device: Json, share: float | None) -> str:
    total = device.get("memory_bytes")
    if share is None:
        return "-"
    return f"{share * total / GIB:.0f}/{total / GIB:.0f} GiB" if total else f"{share:.0%}"


def _hot(degrees: float | None) -> str:
    return "31" if degrees is not None and degrees >= 85 else ""


def make_job_table(overview: Json, now: float, etas: Mapping[str, float] | None = None) -> Table:
    """Return the table of jobs that are being prepared, run or are held; running jobs come first."""
    order = ("running", "stopping", "starting", "preparing", "held")
    found = sorted(
        overview["jobs"], key=lambda job: order.index(job["state"]) if job["state"] in order else len(order)
    )
    columns = (
        *(
            "JOB",
            "NAME",
            "OWNER",
            "STATE",
            "TRY",
            "STEP",
            "ITEMS/S",
            "DATA WAIT",
            "UTIL",
            "MEM",
            "DISK R/W",
            "FOR",
            "LEFT",
        ),
        "ON",
    )
    names = {each["uuid"]: str(each.get("name") or each["uuid"]) for each in overview["devices"]}
    rows = tuple(_job(each, now, etas or {}, names) for each in found)
    spare = ("DISK R/W", "TRY", "MEM", "OWNER", "FOR", "UTIL", "STEP")
    return Table(columns, rows, empty="no job is running", spare=spare)


def _job(job: Json, now: float, etas: Mapping[str, float], names: Mapping[str, str]) -> tuple[Cell, ...]:
    progress = job.get("progress") or {}
    recent = progress if now - progress.get("time", 0.0) < QUIET_S else {}
    rate, wait, util = recent.get("items_per_s"), recent.get("data_wait"), job.get("util")
    state, colour = _state(job, progress, now)
    return (
        Cell(_text(job["id"]), right=True),
        Cell(_text(job["name"])),
        Cell(_text(job["owner"])),
        Cell(state, colour),
        Cell(_text(job["attempt"]), right=True),
        Cell(formatting.progress_share(job), right=True),
        Cell("-" if rate is None else formatting.count(rate), right=True),
        Cell("-" if wait is None else f"{wait:.0%}", _high(wait), right=True),
        Cell("-" if util is None else f"{util:.0f}%", _low(None if util is None else util / 100), right=True),
        Cell("-" if job.get("memory") is None else f"{job['memory']:.0%}", right=True),
        Cell(_disk(job.get("disk")), right=True),
        Cell(formatting.age(job.get("started_at") or job["since"], now), right=True),
        Cell(readable_duration(etas[job["id"]]) if job["id"] in etas else "-", right=True),
        _place(job, names),
    )


def _disk(disk: Json | None) -> str:
    """Return the bytes per second that a job reads and writes."""
    if disk is None:
        return "-"
    return f"{formatting.count(disk['read_per_s'])}/{formatting.count(disk['written_per_s'])}"


def _place(job: Json, names: Mapping[str, str]) -> Cell:
    """Return the problem of a job, else its devices, else its pending reason."""
    place = ", ".join(names.get(uuid, uuid) for uuid in job["gpus"]) or "cpu"
    if job.get("alarm"):
        return Cell(f"{_text(place)}: {_text(job['alarm'])}", "33")
    return Cell(_text(job["why"] or place))


def _state(job: Json, progress: Json, now: float) -> tuple[str, str]:
    """Return the state of a job: its phase if that is not training, and whether it is silent."""
    state, phase = str(job["state"]), progress.get("phase", "train")
    if state == "running" and progress and now - progress.get("time", now) >= QUIET_S:
        return f"silent {readable_duration(now - progress['time'])}", "33"
    if state == "running" and phase != "train":
        return _text(phase), "36"
    return state, STATE_COLOURS.get(state, "")


def make_queue_table(overview: Json, now: float) -> Table:
    """Return the table of waiting jobs in queue order, with what they wait for."""
    rows = tuple(_waiting(each, now) for each in overview["queue"])
    columns = ("JOB", "NAME", "OWNER", "GPUS", "CPUS", "WAITS", "STARTS", "WHY")
    more = overview["queue_length"] - len(rows)
    return Table(columns, rows, more, empty="nobody waits", spare=("CPUS", "WAITS", "OWNER"))


def _waiting(job: Json, now: float) -> tuple[Cell, ...]:
    wants, starts = job.get("wants") or {}, job.get("starts_at")
    return (
        Cell(_text(job["id"]), right=True),
        Cell(_text(job["name"])),
        Cell(_text(job["owner"])),
        Cell(_text(wants.get("gpus")), right=True),
        Cell("-" if wants.get("cpus") is None else f"{wants['cpus']:g}", right=True),
        Cell(formatting.age(job["since"], now), right=True),
        Cell(_until(starts, now), right=True),
        Cell(_text(job["why"])),
    )


# --- cells


def _until(at: str | None, now: float) -> str:
    return "-" if at is None else f"in {readable_duration(formatting.unix(at) - now)}"


def _text(value: object) -> str:
    return "-" if value is None or value == "" else harmless(str(value))


def _short(model: str) -> str:
    """Return the name of a model without the words common to all models."""
    words = [each for each in model.split() if each not in {"NVIDIA", "AMD", "Instinct", "GeForce"}]
    return " ".join(words) or model


def _unit(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f} {unit}"


def _low(share: float | None) -> str:
    """Return the colour of a share that should be high."""
    if share is None:
        return ""
    return "31" if share < 0.3 else "33" if share < 0.7 else "32"


def _high(share: float | None) -> str:
    """Return the colour of a share that should be low."""
    if share is None:
        return ""
    return "31" if share >= 0.5 else "33" if share >= 0.2 else ""


def _bar(share: float | None, style: Style, *, low_is_bad: bool) -> Cell:
    """Return a share as a bar of ten characters and a number."""
    if share is None:
        return Cell("-")
    full = min(max(round(share * 10), 0), 10)
    drawn = "█" * full + "░" * (10 - full) if style.blocks else "#" * full + "." * (10 - full)
    return Cell(f"{drawn} {share * 100:>3.0f}%", _low(share) if low_is_bad else "")


def _share_lines(tables: Sequence[Table], height: int) -> list[int]:
    """Return the number of rows to show of each table: all, or an even part of what smaller tables leave.

    A table also takes an empty line and a line of column names. A cut table takes a line that counts
    the rest.
    """
    wanted = [each.height for each in tables]
    given, room = [0] * len(tables), height - len(tables)
    while room > 0 and (hungry := [i for i, lines in enumerate(wanted) if given[i] < lines]):
        given[min(hungry, key=lambda i: given[i])] += 1
        room -= 1
    return [
        len(each.rows) if given[i] == wanted[i] else max(given[i] - 2, 0) for i, each in enumerate(tables)
    ]
