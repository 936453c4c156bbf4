"""Days with ten users, written down before they begin: a seed gives the same day again.

What people do, and what befalls the machine.  Times are seconds since the morning.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any, Final

from runner.core.scheduler.snapshot import DeviceState
from tests.fakes.daemon.fast_clock import MORNING
from tests.fakes.gpu.hosts import NvidiaHost, h100s, mixed, sliced_a100s

HOUR_S: Final = 3600.0
SPEED: Final = 1800.0
NIGHT_S: Final = -0.3 * HOUR_S
"""When the daemon is started, before anybody submits."""

BUSY_S: Final = 5.2 * HOUR_S
"""For so long people submit; then the day only has to come to its end."""

TEAMS: Final = (20100, 20200)
USERS: Final = tuple(20001 + number for number in range(10))
GUEST: Final = 20011
"""Hands in one job."""

VISITOR: Final = 20012
"""Has a quota of no devices at all."""


def team_of(uid: int) -> int:
    """Return the group of a user: five are in each."""
    return TEAMS[uid % 2]


def seen(what: str) -> str:
    """Return what is counted whenever the daemon sees a device so."""
    return f"saw {what}"


QUEUE: Final[Mapping[str, Any]] = {
    "classes": {
        "idle": {"rank": 0, "weight": 0.5, "preemptible": True, "bound": "2h"},
        "normal": {"rank": 10, "bound": "40m"},
        "urgent": {
            "rank": 20,
            "weight": 4,
            "preempts": True,
            "bound": "20m",
            "users": [str(uid) for uid in (*USERS, VISITOR)],
        },
    },
    "user_quota": {"devices": 4, "jobs": 5, "queued": 12},
    "user_quotas": {
        str(USERS[0]): {"devices": 8, "jobs": 6},
        str(USERS[1]): {"devices": 1, "jobs": 2},
        str(VISITOR): {"devices": 0, "jobs": 1},
    },
    "group_quotas": {str(TEAMS[1]): {"devices": 6, "jobs": 9}},
    "unknown": "1h",
    "reservations": 16,
    "preemption": {"hurdle": 0.2, "young": "3m"},
}


@dataclass(frozen=True)
class Deed:
    """Something that somebody does."""

    at_s: float
    what: str  # submit, cancel, hold, release, drain, resume
    uid: int
    name: str  # of the job or the device
    file: Mapping[str, Any] | None = None
    refused: str = ""  # words with which it must be refused
    once: str = ""  # what must have been counted before, whenever that is


@dataclass(frozen=True)
class Fate:
    """Something that befalls the machine; until ``ends_s``, where that makes sense.

    What ``shows`` as something lasts until the daemon has been seen to see that, and nothing else befalls
    the machine before: on a busy one hours may pass between two looks.
    """

    at_s: float
    what: str  # stranger, lost, leak, death, hang, kill
    card: int = 0
    ends_s: float = 0.0
    shows: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of host, and what people ask of it."""

    name: str
    shapes: tuple[tuple[int, Mapping[str, Any]], ...]  # how often, and which fields a job file has
    closed: str  # the device that is somebody else's for a while
    shared: tuple[str, ...] = ()

    def host(self) -> NvidiaHost:
        """Return the host in the morning."""
        return {"h100": h100s, "a100": sliced_a100s, "mixed": _two_of_each}[self.name]()


def _gpus(count: int, **devices: Any) -> Mapping[str, Any]:
    return {"resources": {"gpus": count}, "devices": devices}


KINDS: Final = (
    Kind(
        "h100",
        (
            (8, _gpus(1)),
            (4, _gpus(2, linked=True)),
            (2, _gpus(4, linked=True, memory="40GiB")),
            (1, _gpus(0)),
        ),
        closed="GPU-h0",
    ),
    Kind(
        "a100",
        (
            (5, _gpus(1)),
            (3, _gpus(1, kind="slice")),
            (2, _gpus(2, kind="slice", memory="30GiB")),
            (2, _gpus(2, linked=True, model=["A100"])),
            (1, _gpus(0)),
        ),
        closed="GPU-a2",
    ),
    Kind(
        "mixed",
        (
            (4, _gpus(1)),
            (3, _gpus(1, model=["H100", "A100"])),
            (3, _gpus(1, capability="8.0", memory="40GiB")),
            (2, _gpus(2)),
            (4, _gpus(1, kind="shared", memory="5GiB")),
            (1, _gpus(0)),
        ),
        closed="GPU-m0",
        shared=("T4",),
    ),
)


def maintenance(kind: Kind) -> Iterator[Mapping[str, Any]]:
    """Yield the times in which a device, and then the whole machine, is somebody else's."""
    for begins_s, ends_s, devices in ((0.8, 1.6, [kind.closed]), (5.6, 5.75, [])):
        begin, end = (
            MORNING + timedelta(hours=at, seconds=sum(by for when, by in JUMPS if when <= at * HOUR_S))
            for at in (begins_s, ends_s)
        )
        yield {"begin": begin.isoformat(), "end": end.isoformat(), "reason": "new fan", "devices": devices}


def _two_of_each() -> NvidiaHost:
    """Return cards of three generations, two of each, without links."""
    first, second = mixed().cards, mixed().cards
    for number, card in enumerate(second):
        card.uuid = f"GPU-n{number}"
        card.say(bus=f"00000000:{0xA0 + number:02X}:00.0")
    return NvidiaHost([*first, *second])


# --- What people do ---------------------------------------------------------------------------------------


def deeds(kind: Kind, seed: int) -> tuple[Deed, ...]:
    """Return all that people do in a day, in order."""
    random = Random(seed)  # noqa: S311  (no secret)
    done = [*_submissions(kind, random), *_mistakes(random), *_upkeep()]
    return tuple(sorted(done, key=lambda each: each.at_s))


def _submissions(kind: Kind, random: Random) -> Iterator[Deed]:
    weights = [often for often, _ in kind.shapes]
    for number in range(76):
        uid, at_s = random.choice(USERS), random.uniform(0, BUSY_S)
        name = f"{uid}-{number}"
        (_, shape) = random.choices(kind.shapes, weights)[0]
        submitted = Deed(at_s, "submit", uid, name, _job(shape, random))
        yield submitted
        yield from _afterwards(submitted, random)
    silent_s = HANG_S + 0.5 * HOUR_S  # by then what was known of the devices is too old
    short = _program(_gpus(0), ["true"])  # ends before the machine is closed
    short["resources"]["time_limit"] = "10m"
    yield Deed(silent_s, "submit", GUEST, PATIENT, short)


PATIENT: Final = "needs-no-driver"
"""A job without devices, submitted while the driver hangs."""

CALM: Final = "calm"
"""What is counted when nothing more befalls the machine, and nothing that did goes on."""

LEAK: Final = "leak"
"""What is seen of a device on which memory is in use and no process is."""


def _afterwards(submitted: Deed, random: Random) -> Iterator[Deed]:
    """Yield what its owner does about a job later: mostly nothing."""
    later_s = submitted.at_s + random.uniform(60, HOUR_S)
    match random.randrange(10):
        case 0:
            yield replace(submitted, at_s=later_s, what="cancel", file=None)
        case 1:
            yield replace(submitted, at_s=later_s, what="hold", file=None)
            yield replace(submitted, at_s=later_s + 0.5 * HOUR_S, what="release", file=None)
        case 2:
            condition = random.choice(["ok", "any", "failed"])
            after = {"queue": {"after": [{"job": submitted.name, "condition": condition}]}}
            file = {**(submitted.file or {}), **after}
            yield replace(submitted, at_s=submitted.at_s + 60, name=f"{submitted.name}-after", file=file)
        case 3:
            matrix = {"values": {"environment.N": ["1", "2", "3"]}, "at_a_time": random.choice([1, 2])}
            file = {**(submitted.file or {}), "environment": {}, "matrix": matrix}
            yield replace(submitted, at_s=later_s, name=f"{submitted.name}-array", file=file)
        case _:
            pass


def _job(shape: Mapping[str, Any], random: Random) -> Mapping[str, Any]:
    """Return a job file: most programs end well, some die, some are cut off by their time limit."""
    lasts_s = random.uniform(0.1, 0.5) * HOUR_S
    wait = f"sleep {lasts_s / SPEED:.3f}"
    program = random.choices([wait, f"{wait}; exit 1", f"{wait}; kill -KILL $$"], [8, 1, 1])[0]
    file = _program(shape, ["sh", "-c", program])
    limit_s = random.choice([0.0, 0.0, lasts_s * 0.6, lasts_s * 1.5, lasts_s * 1.5])
    if limit_s:
        file["resources"]["time_limit"] = f"{limit_s:.0f}s"
    priority_class = random.choices(["idle", "normal", "urgent"], [3, 6, 1])[0]
    file["queue"] = {"priority_class": priority_class}
    return file


def _program(shape: Mapping[str, Any], command: list[str]) -> dict[str, Any]:
    return {
        "workload": {"kind": "program", "command": command},
        "resources": {"cpus": 1, "memory": "64MiB", **shape["resources"]},
        "devices": shape["devices"],
        "stop_grace": "60s",
        "retry": {"max_attempts": 3, "backoff": "60s"},
    }


def _mistakes(random: Random) -> Iterator[Deed]:
    """Yield submissions that can never be served, each with what must be said."""
    asked = (
        (USERS[2], _gpus(60), "asks for 60; there are"),
        (USERS[3], _gpus(1, model=["B9000"]), "no device matches the request for 1 GPU (B9000); there are"),
        (USERS[4], _gpus(1, memory="500GiB"), "no device matches"),
        (VISITOR, _gpus(1), f"user {VISITOR} may have 0 devices at a time, and this job asks for 1"),
    )
    for number, (uid, shape, words) in enumerate(asked):
        file = _program(shape, ["true"])
        yield Deed(random.uniform(0, BUSY_S), "submit", uid, f"mistake-{number}", file, words)


def _upkeep() -> Iterator[Deed]:
    """Yield what the operator does about devices."""
    yield Deed(1.2 * HOUR_S, "drain", 0, "2")
    yield Deed(2.0 * HOUR_S, "resume", 0, "drained", once=seen(DeviceState.DRAINED))
    for at_s in (2.6, 3.5, 5.3):  # whatever was quarantined has been looked at by then
        yield Deed(at_s * HOUR_S, "resume", 0, "quarantined")
    yield Deed(5.6 * HOUR_S, "resume", 0, "quarantined", once=CALM)


# --- What befalls the machine -----------------------------------------------------------------------------

HANG_S: Final = 3.7 * HOUR_S
KILLS_S: Final = (2.9 * HOUR_S, 4.9 * HOUR_S)
"""When the daemon is killed; the second time it has lost its driver."""

JUMPS: Final = ((2.6 * HOUR_S, 1200.0), (3.8 * HOUR_S, -2400.0))
"""When the time of day is set, and by how much."""


def fates(seed: int) -> tuple[Fate, ...]:
    """Return all that befalls the machine in a day, in order."""
    random = Random(seed + 1)  # noqa: S311  (no secret)
    deaths = (Fate(random.uniform(0.4, 5.0) * HOUR_S, "death") for _ in range(6))
    happens = (
        Fate(NIGHT_S, "stranger", 1, 0.4 * HOUR_S, seen(DeviceState.FOREIGN)),
        Fate(1.8 * HOUR_S, "lost", -1, 2.4 * HOUR_S, seen(DeviceState.QUARANTINED)),
        Fate(2.4 * HOUR_S, "leak", 2, 2.8 * HOUR_S, seen(LEAK)),
        Fate(3.3 * HOUR_S, "stranger", 1, 3.6 * HOUR_S),
        Fate(HANG_S, "hang", -2, KILLS_S[1]),
        *(Fate(at_s, "kill") for at_s in KILLS_S),
        *deaths,
    )
    return tuple(sorted(happens, key=lambda each: each.at_s))
