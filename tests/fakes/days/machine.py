"""The machine of a scripted day, as it really is, whatever the daemon believes: it outlives the daemon.

What runs is found out from the processes themselves, and the driver says so to whoever asks.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event as Flag
from typing import Final

from runner.adapters.process.records import ProcessRecord
from tests.fakes.daemon import fork_server as nursery
from tests.fakes.daemon.fast_clock import FastClock, start
from tests.fakes.days.script import CALM, HOUR_S, NIGHT_S, SPEED, Fate, Kind, fates
from tests.fakes.gpu.hosts import GIB, compile_nvml
from tests.fakes.patience import patience

HOLD_S: Final = 12.0
"""In real time: for so long something goes on after its end, until the daemon has seen it."""

IDLE_BYTES: Final = 600 * 1024**2
LOOK_S: Final = 0.02
CLOCK: Final = "clock"
"""The file of the clock; the daemon winds it, so that the day waits for one that is slow or away."""


@dataclass
class Program:
    """A living program of an attempt."""

    attempt: str
    pid: int
    devices: tuple[str, ...]


@dataclass
class Machine:
    """A host with its driver, what runs on it, and a daemon that is killed now and then."""

    place: Path
    kind: Kind
    seed: int
    clock: FastClock = field(init=False)
    broken: list[str] = field(default_factory=list)
    most: int = 0  # devices in use at a time
    killed: int = 0
    dead: int = 0
    _fates: list[Fate] = field(default_factory=list)
    _open: list[Fate] = field(default_factory=list)  # what has begun and not ended
    _said: str = ""
    _strangers: dict[float, subprocess.Popen[bytes]] = field(default_factory=dict)
    _daemon: BaseProcess | None = None

    def __post_init__(self) -> None:
        (self.place / "state").mkdir(mode=0o755)
        self.host = self.kind.host()
        self.library = compile_nvml(self.place / "driver")
        start(self.place / CLOCK, NIGHT_S)
        self.clock = FastClock(self.place / CLOCK, SPEED)
        self._fates = list(fates(self.seed))
        said = {"kind": self.kind.name, "seed": self.seed}
        (self.place / "day.json").write_text(json.dumps(said))
        self.look()

    # --- the day

    def live(self) -> None:
        """Return when the day is over, or the daemon has stopped by itself."""
        pause, deadline = Flag(), time.monotonic() + patience(240)
        self._start()
        try:
            while self._daemon is not None and self._daemon.exitcode is None and time.monotonic() < deadline:
                self._meet()
                self.look()
                pause.wait(LOOK_S)
        finally:
            self._end()

    def _start(self) -> None:
        told = {"LD_LIBRARY_PATH": str(self.library), "RUNNER_FAKE_NVML": str(self.place / "host")}
        log = self.place / "daemon.log"
        self._daemon = nursery.born(
            "tests.fakes.days.daemon", str(self.place), environ={**os.environ, **told}, log=log
        )

    def _end(self) -> None:
        """End whatever is left of the day."""
        for each in self._strangers.values():
            each.kill()
            each.wait()
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.join()
        for program in self.programs():
            with suppress(ProcessLookupError):  # it has ended by itself just now
                os.killpg(program.pid, signal.SIGKILL)

    # --- what befalls it

    def _meet(self) -> None:
        now_s = self.clock.since_morning()
        for fate in [each for each in self._open if each.ends_s <= now_s and not self._holds(each, now_s)]:
            self._open.remove(fate)
            self._over(fate)
        held = any(each.ends_s <= now_s for each in self._open)
        while self._fates and self._fates[0].at_s <= now_s and not held:
            fate = self._fates.pop(0)
            self._befalls(fate)
            if fate.ends_s:
                self._open.append(fate)
            held = fate.shows != "" and fate.ends_s <= now_s
        if not (self._fates or self._open):
            self._is_calm()

    def _is_calm(self) -> None:
        """Say once that nothing more befalls the machine."""
        whole = self.place / "counts-calm.json"
        if not whole.exists():
            part = whole.with_suffix(".part")
            part.write_text(json.dumps({CALM: 1}))
            part.replace(whole)

    def _holds(self, fate: Fate, now_s: float) -> bool:
        """Return True if something goes on although its time is over: nobody has been seen to see it."""
        unseen = fate.shows != "" and fate.shows not in counted(self.place)
        return unseen and now_s < fate.ends_s + HOLD_S * SPEED

    def _befalls(self, fate: Fate) -> None:
        card = self.host[fate.card % len(self.host.cards)]
        match fate.what:
            case "stranger":
                self._strangers[fate.at_s] = subprocess.Popen(["sleep", "600"], start_new_session=True)
            case "lost":
                card.kind = "lost"
            case "hang":
                card.say(hang=1)
            case "death":
                self._kill_a_program()
            case "kill":
                self._kill_the_daemon()
            case _:  # a leak: what the card has in use is worked out at every look
                pass

    def _over(self, fate: Fate) -> None:
        card = self.host[fate.card % len(self.host.cards)]
        match fate.what:
            case "stranger":
                process = self._strangers.pop(fate.at_s)
                process.kill()
                process.wait()
            case "lost":
                card.kind = "gpu"
            case "hang":
                card.say(hang=None)
            case _:
                pass

    def _kill_a_program(self) -> None:
        """kill -9 the program that was begun first, from outside."""
        for program in list(self.programs())[:1]:
            with suppress(ProcessLookupError):  # it has ended by itself just now
                os.kill(program.pid, signal.SIGKILL)
                self.dead += 1

    def _kill_the_daemon(self) -> None:
        """kill -9 the daemon, and bring it back."""
        assert self._daemon is not None
        if self._daemon.exitcode is None:
            for fate in [each for each in self._open if each.what == "hang"]:
                self._open.remove(fate)
                self._over(fate)
            self._daemon.kill()
            self._daemon.join()
            self.killed += 1
            self.look()
            self._start()

    # --- what is true

    def programs(self) -> Iterator[Program]:
        """Yield the programs of attempts that are alive, by what the kernel says about them."""
        for path in sorted((self.place / "state/processes").glob("runner-*")):
            child = ProcessRecord(path).child
            if child is not None and child.alive:
                devices = _devices(child.pid)
                if devices is not None:
                    yield Program(path.name, child.pid, devices)

    def look(self) -> None:
        """Let the driver say what is so now, and look for devices that two programs have."""
        users: dict[str, list[Program]] = {}
        for program in self.programs():
            for uuid in program.devices:
                users.setdefault(uuid, []).append(program)
        self.most = max(self.most, len(users))
        for uuid, programs in users.items():
            shared = any(each in self._card(uuid) for each in self.kind.shared)
            if len(programs) > 1 and not shared:
                self.broken.append(f"{uuid}: given to {[each.attempt for each in programs]}")
        self._say({uuid: [each.pid for each in programs] for uuid, programs in users.items()})

    def _card(self, uuid: str) -> str:
        return next(card.model for card in self.host.cards if card.uuid == uuid)

    def _say(self, users: Mapping[str, list[int]]) -> None:
        for number, card in enumerate(self.host.cards):
            pids = list(users.get(card.uuid, ()))
            troubles = [each for each in self._open if each.card % len(self.host.cards) == number]
            pids += [self._strangers[each.at_s].pid for each in troubles if each.what == "stranger"]
            leaked = 6 * GIB if any(each.what == "leak" for each in troubles) else 0
            used = IDLE_BYTES + leaked + GIB * len(pids)
            card.say(procs=",".join(f"{pid}:{GIB}" for pid in pids) or None, used=used)
        if self.host.text() != self._said:
            self._said = self.host.text()
            self.host.write(self.place / "host")

    def hours(self) -> float:
        return self.clock.since_morning() / HOUR_S


def counted(place: Path) -> Mapping[str, int]:
    """Return what the lives of the daemon have counted, together."""
    total: dict[str, int] = {}
    for path in place.glob("counts-*.json"):
        for name, count in json.loads(path.read_text()).items():
            total[name] = total.get(name, 0) + count
    return total


def _devices(pid: int) -> tuple[str, ...] | None:
    """Return what a program was given; None while it is no program yet, or no more."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    known = dict(each.partition("=")[::2] for each in variables)
    given = known.get("CUDA_VISIBLE_DEVICES")
    return None if given is None else tuple(filter(None, given.split(",")))
