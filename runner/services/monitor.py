"""Looking at what the jobs make of what they hold, on a thread of its own.

Every few seconds: how busy the devices of each attempt are, added up for ``runner usage``; whether an
attempt has been idle for so long that its owner should hear why; how long the loop takes to answer; and
what has ended or been decided since, for the figures of ``/metrics``.  The loop is asked only to write.
"""

from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Final

import structlog

from jobs.contract import Status
from runner.base.errors import Unavailable
from runner.base.threads import PeriodicThread
from runner.control.transitions import ANSWER_S
from runner.core.devices.bottleneck import (
    IdleAlarm,
    LoaderSetup,
    SampleWindow,
    UtilizationSample,
    alarm_kind,
    idle_alarm,
)
from runner.core.job.describe import attempt_prefix
from runner.core.job.states import Running
from runner.core.policy.facts import FactValue
from runner.core.ports.store import JobRow
from runner.files.policy.load import PolicySource, load_named_policy
from runner.services.jobs import JobService

log = structlog.get_logger()

ALARM: Final = "alarm"
"""What the store calls a line about something that its owner should look at."""

WRITE_S: Final = 60.0
"""Seconds between two writes of how busy devices were: what a killed daemon forgets."""

SILENT_S: Final = 60.0
"""A job that has said nothing for longer may hang, and that is another matter."""

STOP_S: Final = 5.0
"""How long the end of a look is waited for."""

MOST_ROWS: Final = 1000
LAGS: Final = 60
"""Answers of the loop that the longest is taken from."""

OTHER_RULE: Final = "other"
"""Stands for every name of a rule that somebody made up: they could be any number."""

_Key = tuple[str, int]  # job and attempt


@dataclass(slots=True)
class LoadCounts:
    """What has ended and been decided since the daemon started."""

    ended: Counter[str] = field(default_factory=Counter)  # attempts by cause
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)  # decisions by moment and rule
    _event: int | None = None
    _decision: int | None = None

    def catch_up(self, service: JobService) -> None:
        """Count what is new; from then on, when it is asked for the first time."""
        store = service.store
        if self._event is None or self._decision is None:
            self._event, self._decision = store.last_seq(), store.last_decision()
        while ends := store.attempt_ends(self._event, MOST_ROWS):
            self._event = ends[-1].seq
            self.ended.update(str(row.cause) for row in ends if row.kind == "exited")
            self.ended.update("launch_failed" for row in ends if row.kind == "launch_failed")
        while uses := store.rule_uses(self._decision, MOST_ROWS):
            self._decision = uses[-1].seq
            self.decisions.update((row.moment, self._rule(row.rule)) for row in uses)

    @staticmethod
    def _rule(name: str) -> str:
        """Return the name of a rule that comes with the runner; all others are one."""
        return "none" if not name else name if name in _shipped_rules() else OTHER_RULE


@cache
def _shipped_rules() -> frozenset[str]:
    policies = [load_named_policy(name) for name in PolicySource().names()]
    return frozenset(
        rule.name for policy in policies for rule in (*policy.on_exit, *policy.on_watch, *policy.on_change)
    )


@dataclass(slots=True)
class _Held:
    """What is remembered of one attempt between looks."""

    at: float
    spell: SampleWindow = field(default_factory=SampleWindow)
    spoke: tuple[float, float] = (0.0, 0.0)  # what its last report says of its time, and when that was new
    said: set[str | None] | None = None  # kinds of alarms that its owner has heard; None: not looked up yet


@dataclass(slots=True)
class UtilizationMonitor:
    """Looks at what runs, and remembers it."""

    service: JobService
    counts: LoadCounts = field(default_factory=LoadCounts)
    alarms: dict[str, str] = field(default_factory=dict)  # what is wrong now, by job
    lags: deque[float] = field(default_factory=lambda: deque([0.0], LAGS))
    _held: dict[_Key, _Held] = field(default_factory=dict)
    _busy: dict[_Key, tuple[float, float]] = field(default_factory=dict)  # not written yet
    _written: float | None = None
    _thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = PeriodicThread("utilization-monitor", self.service.settings.watch_every_s, self.look)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; what was seen last is written."""
        self._thread.stop()
        self._thread.join(STOP_S)
        self._write()

    # --- one look

    def look(self) -> None:
        """Look at everything once."""
        self._probe()
        now = self.service.clock.monotonic()
        running = {
            (entry.row.job.id, entry.row.job.state.attempt.number): (entry.row, entry.row.job.state)
            for entry in list(self.service.daemon.tracked_jobs.values())
            if isinstance(entry.row.job.state, Running)
        }
        self._held = {key: held for key, held in self._held.items() if key in running}
        ids = {job_id for job_id, _ in running}
        self.alarms = {job_id: text for job_id, text in self.alarms.items() if job_id in ids}
        for key, (row, state) in running.items():
            self._look_at(key, row, state, now)
        if self._written is None or now - self._written >= WRITE_S:
            self._written = now
            self._write()
        self.counts.catch_up(self.service)

    def _probe(self) -> None:
        """Measure how long the loop takes to answer."""
        began = self.service.clock.monotonic()
        with suppress(TimeoutError):  # it took longer than anybody waits: that is the answer
            self.service.daemon.exclusive.submit(lambda: None).result(timeout=ANSWER_S)
        self.lags.append(self.service.clock.monotonic() - began)

    def _look_at(self, key: _Key, row: JobRow, state: Running, now: float) -> None:
        held = self._held.setdefault(key, _Held(now))
        since, held.at = held.at, now
        utils = self._utils(state, now - since)
        known = [util for util in utils if util is not None]
        if known and now > since:
            device_s, busy_s = self._busy.get(key, (0.0, 0.0))
            self._busy[key] = (
                device_s + len(known) * (now - since),
                busy_s + sum(known) * (now - since),
            )
        last = self.service.queries.progress(row)
        status = self._spoken(last, held, now)
        util = min(known) if known and len(known) == len(utils) else None
        phase, wait = (None, None) if status is None else (status.phase.value, status.data_wait)
        look = UtilizationSample(now, phase, util, wait, silent=last is None)
        held.spell = held.spell.add(look, self.service.settings.alarm.window_s)
        self._judge(key, row, state, held)

    @staticmethod
    def _spoken(status: Status | None, held: _Held, now: float) -> Status | None:
        """Return the report of an attempt, None if it has been silent for a while: then it tells nothing."""
        if status is None:
            return None
        if status.time != held.spoke[0]:
            held.spoke = status.time, now
        return None if now - held.spoke[1] > SILENT_S else status

    def _utils(self, state: Running, span_s: float) -> list[float | None]:
        """Return how busy each device of an attempt was since the last look, as a share."""
        inventory, devices = self.service.daemon.context.inventory, state.allocation.devices
        since = self.service.clock.now() - timedelta(seconds=span_s)
        found = [inventory.facts((uuid,), since).get("device.util") for uuid in devices]
        return [util / 100 if isinstance(util, int | float) else None for util in found]

    # --- alarms

    def _judge(self, key: _Key, row: JobRow, state: Running, held: _Held) -> None:
        """Note on a job what keeps it from using what it holds, once for each attempt and reason."""
        found = self._alarm(row, state, held.spell)
        if found is None:
            self.alarms.pop(row.job.id, None)
            return
        self.alarms[row.job.id] = found.text
        if held.said is None:
            noted = self.service.store.noted(row.job.id, ALARM)
            held.said = {alarm_kind(text) for text in noted if text.startswith(attempt_prefix(key[1]))}
        if found.kind not in held.said:
            service, at = self.service, self.service.clock.now()
            text = f"{attempt_prefix(key[1])}{found.text}"
            service.daemon.run_exclusively(lambda: service.store.note(row.job.id, at, ALARM, text))
            held.said.add(found.kind)

    def _alarm(self, row: JobRow, state: Running, spell: SampleWindow) -> IdleAlarm | None:
        settings, on_devices = self.service.settings.alarm, bool(state.allocation.devices)
        highest = max(settings.below_percent, *settings.profiles.values(), 0.0) / 100
        if idle_alarm(spell, LoaderSetup(), highest, settings.window_s, on_devices=on_devices) is None:
            return None  # by any limit: nothing need be read of the disk
        facts = self.service.attempt_service.probe(row, state.attempt).facts
        below = settings.profiles.get(str(facts.get("effective.profile")), settings.below_percent) / 100
        status = self.service.queries.progress(row)
        setup = _setup(facts, {} if status is None else status.parts)
        return idle_alarm(spell, setup, below, settings.window_s, on_devices=on_devices)

    # --- writing

    def _write(self) -> None:
        """Let the loop write how busy devices were; what it cannot write is kept for the next time."""
        busy, self._busy = self._busy, {}
        if not busy:
            return
        try:
            self.service.daemon.run_exclusively(lambda: self.service.usage_report.add(busy))
        except (Unavailable, TimeoutError) as error:
            log.warning("meter.not_written", problem=str(error))
            self._busy = busy


def _setup(facts: Mapping[str, FactValue], parts: Mapping[str, float]) -> LoaderSetup:
    """Return how an attempt is set up, of what is known about it.

    What a program of its owner's own makes of the profile nobody knows; such a one does not save on demand.
    """
    if facts.get("checkpoint.on_demand") is not True:
        return LoaderSetup(parts)
    workers, batch = facts.get("effective.workers"), facts.get("effective.micro_batch")
    compiled = facts.get("effective.compile")
    return LoaderSetup(
        parts,
        workers if isinstance(workers, int) else None,
        batch if isinstance(batch, int) else None,
        compiled if isinstance(compiled, bool) else None,
    )
