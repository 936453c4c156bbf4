"""The daemon of a scripted day, as a process that can be killed: the real one, on a clock that goes faster.

``python -m tests.fakes.days.daemon PLACE`` does what is left of the day's deeds and asks after every
event whether the rules hold.  What breaks one is a line in ``PLACE/broken``.
"""

import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any, Final

import pytest

from runner.agent.devices.health import STALE_POLLS, DeviceHealthMonitor
from runner.agent.devices.inventory import Inventory
from runner.base import logging as logs
from runner.base.errors import Refused, RunnerError
from runner.base.instant import Instant
from runner.control import scheduler as scheduling
from runner.core.devices.state import CleanupRules
from runner.core.job.states import Allocated, Finished, Held, Running
from runner.core.ports.store import JobRow
from runner.core.scheduler.backfill import Plan, plan
from runner.core.scheduler.snapshot import DeviceState, Snapshot
from runner.files.settings.model import Settings
from runner.files.submission import Submission
from runner.server import composition as app
from runner.services.context import Caller
from runner.services.jobs import JobService
from tests.fakes.daemon.fast_clock import FastClock
from tests.fakes.daemon.service import LENDABLE_BYTES
from tests.fakes.days import invariants as day_rules
from tests.fakes.days.invariants import Holding
from tests.fakes.days.machine import CLOCK, HOLD_S, counted
from tests.fakes.days.script import (
    BUSY_S,
    HOUR_S,
    JUMPS,
    KILLS_S,
    KINDS,
    LEAK,
    PATIENT,
    QUEUE,
    SPEED,
    Deed,
    Kind,
    deeds,
    maintenance,
    seen,
    team_of,
)

LOOK_S: Final = 240.0
"""Between two looks at the devices, in the day's own time."""

TURN_S: Final = 0.02
"""In real time: the loop is woken so often, for its waits know nothing of a clock that goes faster."""

READ_EVERY: Final = 4
"""Plans after which everybody's reasons are read: they are worked out when they are."""

STORE_EVERY: Final = 5
"""Ticks after which the store is held against what the daemon knows."""

SLACK_S: Final = 0.3 * HOUR_S
"""In which a job without devices must start, however silent the driver is."""

EVENING_S: Final = BUSY_S + 0.8 * HOUR_S
"""When whoever still waits is sent home."""

USUAL: Final = (
    "waiting, and has",
    "has ended (",
    "at a time, and this job asks for",
    "there is no job",
    "), so it cannot be held; ",
    "), so it cannot be released; ",
    *(f"is {state}, so it cannot be released; " for state in ("queued", "starting", "running")),
)
"""What people are told on a day on which nothing is wrong: queues are full, jobs have ended or are stopping.

A job that was stopping could not be held, and may be queued again or further by the time of its release.
"""


@dataclass
class Day:
    """One life of the daemon within a day."""

    place: Path
    clock: FastClock
    service: JobService
    counts: Counter[str] = field(default_factory=Counter)
    _waited: frozenset[str] = frozenset()

    @property
    def inventory(self) -> Inventory:
        found = self.service.daemon.context.inventory
        assert isinstance(found, Inventory)
        return found

    # --- rules, on the loop's thread

    def hold(self, rule: Callable[[], object]) -> None:
        """Write down what breaks a rule; the day goes on."""
        try:
            rule()
        except AssertionError as error:
            where = traceback.extract_tb(error.__traceback__)[-1].name
            self.broken(f"{where}: {error}")

    def broken(self, what: str) -> None:
        with (self.place / "broken").open("a") as file:
            file.write(f"{self.clock.since_morning() / HOUR_S:.3f} h: {what}\n")

    def changed(self, jobs: Sequence[str]) -> None:
        """Something has happened to a job."""
        self.counts["events"] += 1
        self.service.broadcast.announce(jobs)
        rows = [entry.row for entry in self.service.daemon.tracked_jobs.values()]
        held = [self._holding(row) for row in rows if isinstance(row.job.state, Allocated)]
        self.hold(lambda: day_rules.lent_once(held, self.inventory.present()))
        quotas = self.service.daemon.context.site.rules.quotas
        self.hold(lambda: day_rules.within_quotas(held, quotas))

    def _holding(self, row: JobRow) -> Holding:
        state, terms = row.job.state, self.service.attempt_service.terms(row)
        assert isinstance(state, Allocated)
        sweep = None if terms.sweep is None else (terms.sweep.id, terms.sweep.max_parallel)
        part = self.service.attempt_service.needs(row).device_bytes
        return Holding(row.job.id, row.owner.name, terms.team, state.allocation.devices, part, sweep)

    def planned(self, snapshot: Snapshot) -> Plan:
        made = plan(snapshot)
        self.counts["plans"] += 1
        self.counts["starts"] += len(made.starts)
        self.counts["preemptions"] += len(made.preemptions)
        self.hold(lambda: day_rules.only_what_is_free_is_lent(snapshot, made))
        if self.counts["plans"] % READ_EVERY == 0:
            self.hold(lambda: day_rules.every_wait_is_explained(snapshot, made))
        self.hold(lambda: self.counts.update(overdue=day_rules.nobody_is_passed_over(snapshot, made)))
        self.hold(lambda: self.counts.update(closed=day_rules.maintenance_is_kept(snapshot, made)))
        return made

    def tick(self, now: Instant) -> None:
        """Hold devices, queue and store against each other."""
        del now
        self.clock.wind()
        self.counts["ticks"] += 1
        self.hold(self._nothing_leaks)
        self.hold(self._everybody_is_told)
        if self.counts["ticks"] % STORE_EVERY == 0:
            self.hold(self._the_store_knows)

    def _nothing_leaks(self) -> None:
        held: dict[str, set[str]] = {}
        for entry in self.service.daemon.tracked_jobs.values():
            if isinstance(entry.row.job.state, Allocated):
                for uuid in entry.row.job.state.allocation.devices:
                    held.setdefault(uuid, set()).add(entry.row.job.id)
        standings = {each.device.uuid: each.standing for each in self.inventory.views()}
        assert held.keys() <= standings.keys(), f"{held.keys() - standings.keys()}: lent and not there"
        self.counts.update(seen(standing.state) for standing in standings.values())
        leaks = (uuid for uuid, each in standings.items() if "in use by no process" in each.reason)
        self.counts.update(seen(LEAK) for _ in leaks)
        for uuid, standing in standings.items():
            holders = held.get(uuid, set())
            assert standing.holders == holders, f"{uuid}: has {standing.holders}, jobs {holders} hold it"
            assert not (holders and standing.state is DeviceState.FREE), (
                f"{uuid}: free, and {holders} hold it"
            )
            assert holders or standing.state is not DeviceState.ALLOCATED, f"{uuid}: lent to nobody"
            assert standing.reason or standing.state is DeviceState.FREE, f"{uuid}: {standing.state}, why?"

    def _everybody_is_told(self) -> None:
        """Assert that every job that waits or is held has a reason."""
        daemon, waiting = self.service.daemon, frozenset(self.service.daemon.scheduler.jobs.pending)
        silent = [job_id for job_id in waiting & self._waited if not daemon.why(job_id)]
        self._waited = waiting
        assert not silent, f"jobs {silent} wait without a reason"
        states = [(job_id, entry.row.job.state) for job_id, entry in daemon.tracked_jobs.items()]
        held = [job_id for job_id, state in states if isinstance(state, Held) and not state.why]
        assert not held, f"jobs {held} are held without a reason"

    def _the_store_knows(self) -> None:
        told = {row.job.id: row.job.state for row in self.service.store.unfinished()}
        known = {job_id: entry.row.job.state for job_id, entry in self.service.daemon.tracked_jobs.items()}
        assert told == known, f"the store says {told}, the daemon {known}"

    # --- deeds, on the main thread

    def live(self, script: tuple[Deed, ...]) -> None:
        """Do what is left of the day's deeds, each at its time; those that were missed at once."""
        done = self.place / "done"
        before = set(done.read_text().split()) if done.exists() else set()
        with done.open("a", buffering=1) as file:
            for number, deed in enumerate(script):
                if str(number) not in before:
                    self.wait(deed.at_s)
                    self._await(deed.once)
                    self._do(deed, f"{number:032d}")
                    file.write(f"{number}\n")
                    if deed.name == PATIENT:
                        self._begins(deed)

    def _begins(self, deed: Deed) -> None:
        """Look whether a job without devices starts, although the driver says nothing any more."""
        if self.clock.since_morning() > KILLS_S[1] - SLACK_S:
            self.counts["asked too late"] += 1
            return
        row = self.service.queries.find(deed.name)
        while not isinstance(self.service.queries.current(row.job.id).job.state, Running | Finished):
            if self.clock.since_morning() > KILLS_S[1] - SLACK_S / 4:
                self.broken(f"{deed.name}: does not start: {self.service.daemon.why(row.job.id)}")
                return
            self.wait(self.clock.since_morning() + 60)
        silent = [each for each in self.inventory.views() if "has not answered" in each.standing.reason]
        self.counts[f"begun {'without' if silent else 'with'} a driver"] += 1

    def wait(self, until_s: float) -> None:
        """Return at a moment of the day; the loop and the drivers' threads go on meanwhile."""
        pause = Flag()
        while (left_s := self.clock.real_s(until_s)) > 0:
            pause.wait(min(left_s, 0.2))
            self.report()

    def _await(self, once: str) -> None:
        """Return when something has been counted, in this life or before, however late that is."""
        deadline_s = self.clock.since_morning() + HOLD_S * SPEED
        while once and once not in counted(self.place) and self.clock.since_morning() < deadline_s:
            self.wait(self.clock.since_morning() + 60)

    def report(self) -> None:
        """Leave the counts where a kill does not reach them."""
        whole = self.place / f"counts-{self.service.started_at.timestamp():.0f}.json"
        part = whole.with_suffix(".part")
        part.write_text(json.dumps(self.counts))
        part.replace(whole)

    def _do(self, deed: Deed, token: str) -> None:
        caller = Caller(deed.uid, team_of(deed.uid) if deed.uid else 0)
        try:
            self._done(deed, caller, token)
        except RunnerError as error:
            said = str(error)
            self.counts["refused"] += 1
            expected = (deed.refused,) if deed.refused else USUAL
            if not any(words in said for words in expected):
                self.broken(f"{deed.what} {deed.name}: refused with {said!r}")
        else:
            if deed.refused:
                self.broken(f"{deed.what} {deed.name}: accepted, and was to be refused: {deed.refused}")

    def _done(self, deed: Deed, caller: Caller, token: str) -> None:
        service, inventory = self.service, self.inventory
        match deed.what:
            case "submit":
                path, text = str(self.place / f"{deed.name}.yaml"), json.dumps(deed.file).encode()
                service.submission.submit_all(caller, Submission(path, text, name=deed.name, token=token))
            case "cancel":
                service.job_control.cancel(caller, deed.name)
            case "hold":
                service.job_control.hold(caller, deed.name)
            case "release":
                service.job_control.release(caller, deed.name)
            case "drain":
                service.daemon.run_exclusively(
                    partial(inventory.drain, self._device(deed.name), "new fan", "root")
                )
            case _:
                for uuid in list(self._out_of_service(deed.name)):
                    service.daemon.run_exclusively(partial(self._resume, uuid))

    def _device(self, number: str) -> str:
        return self.inventory.present()[int(number) % len(self.inventory.present())].uuid

    def _out_of_service(self, state: str) -> Iterator[str]:
        for each in self.inventory.views():
            if each.standing.state == state:
                yield each.device.uuid

    def _resume(self, uuid: str) -> None:
        try:
            self.inventory.resume(uuid, "root")
        except Refused:
            self.counts["resumed too late"] += 1

    # --- the end of the day

    def end(self) -> None:
        """Let everything come to its end, then look at what is left."""
        daemon = self.service.daemon
        while daemon.tracked_jobs and self.clock.since_morning() < EVENING_S:
            self.wait(self.clock.since_morning() + 200)
        for entry in list(daemon.tracked_jobs.values()):
            self.service.job_control.cancel(Caller(0, 0), entry.row.job.id)
        night_s = self.clock.since_morning() + 3 * HOUR_S
        while (daemon.tracked_jobs or self._unclean()) and self.clock.since_morning() < night_s:
            self.wait(self.clock.since_morning() + 100)
        self.hold(self._everything_is_back)

    def _unclean(self) -> list[str]:
        shown = self.inventory.views()
        return [each.device.uuid for each in shown if each.standing.state is not DeviceState.FREE]

    def _everything_is_back(self) -> None:
        daemon = self.service.daemon
        left = {job_id: entry.row.job.state for job_id, entry in daemon.tracked_jobs.items()}
        assert not left, f"jobs are left: {left}"
        assert not daemon.scheduler.jobs.running, (
            f"somebody is thought to run: {daemon.scheduler.jobs.running}"
        )
        out = [each for each in self.inventory.views() if each.standing.state is not DeviceState.FREE]
        told = [f"{each.device.uuid} is {each.standing.state}: {each.standing.reason}" for each in out]
        assert not told, f"devices are left: {told}"
        rows = self.service.store.recent(self.service.clock.now().replace(year=2000), None, 10_000)
        self.counts["jobs"] = len(rows)
        ended = [row.job.state.outcome for row in rows if isinstance(row.job.state, Finished)]
        self.counts.update(f"ended {outcome}" for outcome in ended)
        assert len(ended) == len(rows), "a job was lost"


def settings(kind: Kind) -> Settings:
    """Return what the operator of the day has said."""
    said: dict[str, Any] = {
        "executor": "process",
        "cpus": 64,
        "memory_bytes": LENDABLE_BYTES,
        "observe_every_s": 0.1,
        "watch_every_s": 0.1,
        "clean_within_s": 1800,
        "shared_devices": kind.shared,
        "queue": {**QUEUE, "maintenance": tuple(maintenance(kind))},
    }
    return Settings.model_validate(said)


def main(place: Path) -> None:
    """Live from now to the end of the day."""
    said = json.loads((place / "day.json").read_text())
    clock, kind = FastClock(place / CLOCK, SPEED, JUMPS), next(k for k in KINDS if k.name == said["kind"])
    logs.configure(terminal=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "SystemClock", lambda: clock)
        patch.setattr(app, "DeviceHealthMonitor", partial(DeviceHealthMonitor, every_s=LOOK_S))
        patch.setattr(app, "CleanupRules", partial(CleanupRules, max_reading_age_s=STALE_POLLS * LOOK_S))
        day = Day(place, clock, app.build(place / "state", settings(kind), app.open_store(place / "state")))
        patch.setattr(scheduling, "plan", day.planned)
        day.service.daemon.changed = day.changed
        day.service.daemon.iteration_hooks.append(day.tick)
        day.service.daemon.start()
        over = Flag()
        Thread(target=_hurry, args=(day, over), daemon=True).start()
        day.live(deeds(kind, said["seed"]))
        day.end()
        over.set()
        day.report()
        day.service.daemon.stop()
    (place / "over").touch()


def _hurry(day: Day, over: Flag) -> None:
    """Wake whoever waits in real time for something that comes sooner here."""
    while not over.wait(TURN_S):
        day.inventory.monitor.hint()
        day.service.daemon.wake()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
