"""The value of a candidate at a rung, and whose sweeps wait for whom."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from threading import Event, Semaphore, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.accounting.curve import Curve
from runner.core.accounting.curve_set import CurveSet
from runner.core.job.states import Finished, Held, Outcome, Queued, State, Stopping, StopReason
from runner.core.sweep import SweepTerms, paused_text
from runner.services import sweeps as module
from runner.services.queries import JobQueries
from runner.services.submission import dependencies
from runner.services.sweeps import SweepService, _value_at
from tests.fakes.daemon.service import until
from tests.fakes.patience import patience

JOB: Any = SimpleNamespace(id="1", lineage=1)


def curve(points: Mapping[int, float]) -> Curve:
    """Return a curve with one value at some steps, each at its time."""
    made = Curve()
    for step, at in points.items():
        made.add(at, step, 0.5)
    return made


@pytest.mark.parametrize(
    ("values", "lost", "value"),
    [
        ({10: 10.0}, {}, 0.5),
        ({}, {10: 10.0}, None),
        ({5: 5.0}, {10: 10.0}, None),
        ({10: 10.0}, {5: 5.0}, 0.5),
        ({10: 10.0}, {15: 15.0}, 0.5),
        ({10: 30.0}, {10: 10.0}, 0.5),
    ],
    ids=["reported", "never-finite", "lost", "back", "lost-after-the-rung", "repeated-by-a-later-attempt"],
)
def test_the_last_report_up_to_a_rung_counts(
    values: dict[int, float], lost: dict[int, float], value: float | None
) -> None:
    curves = {"loss": curve(values), "loss not finite": curve(lost)}
    assert _value_at(curves, "loss", 10) == value


def test_a_value_that_was_decided_by_stays_when_a_long_curve_is_thinned() -> None:
    noted: list[str] = []
    store = SimpleNamespace(noted=lambda _job, _kind: noted)
    sweeps = cast("Any", SimpleNamespace(service=SimpleNamespace(store=store)))
    made = Curve()

    def values() -> tuple[float | None, ...]:
        return SweepService._values(sweeps, SweepTerms("loss", rungs=(10, 30)), JOB, {"loss": made}, 1)

    for step in range(3000):
        made.add(float(step), step, 1.0 / (step + 1))
        if step == 10:
            assert values() == (0.0909091,)
            noted.append("step 10: loss 0.0909091 is 1 of 3; goes on")
    assert _value_at({"loss": made}, "loss", 10) != pytest.approx(1.0 / 11)
    assert values() == (0.0909091,)


@pytest.mark.parametrize(
    ("reported", "final"),
    [({}, 0.75), ({"accuracy": curve({5: 5.0})}, 0.5), ({"accuracy not finite": curve({5: 5.0})}, None)],
    ids=["never", "earlier", "not-finite"],
)
def test_a_metric_that_only_the_result_of_a_candidate_has_is_its_final_value(
    monkeypatch: pytest.MonkeyPatch, reported: dict[str, Curve], final: float | None
) -> None:
    monkeypatch.setattr(module, "parse_revision", lambda _text: SimpleNamespace(sweep=None))
    results = {(2, 1): SimpleNamespace(metrics={"accuracy": 0.75})}
    directory = SimpleNamespace(paths=lambda *of: of, result=results.get)
    service: Any = SimpleNamespace(
        store=SimpleNamespace(noted=lambda _job, _kind: ()),
        attempt_service=SimpleNamespace(directory=lambda _row: directory),
    )
    curves: Any = SimpleNamespace(of_job=lambda _row: CurveSet(reported))
    state = Finished(datetime(2030, 1, 1, tzinfo=UTC), Outcome.SUCCEEDED, "")
    job = SimpleNamespace(id="1", state=state, saved=10, lineage=1, attempts=2)
    row: Any = SimpleNamespace(revision="", job=job)
    assert SweepService(service, curves).candidate(SweepTerms("accuracy"), row).final == final


AT = datetime(2030, 1, 1, tzinfo=UTC)
BY_ADA, PAUSED = Held(AT, "held by ada", asked=True), Held(AT, paused_text(100))
ENDED = Finished(AT, Outcome.SUCCEEDED, "")


@pytest.mark.parametrize(
    ("states", "after_s", "settled"),
    [
        ([BY_ADA], 0, True),
        ([PAUSED, PAUSED, ENDED], 3600, False),
        ([PAUSED, BY_ADA, Queued(AT, "")], 3600, False),
        ([PAUSED, BY_ADA, PAUSED, ENDED], 1, False),  # the sweep may be about to decide
        ([PAUSED, BY_ADA, PAUSED, ENDED], 61, True),
    ],
    ids=["held", "all-paused", "one-waits", "just-now", "one-held"],
)
def test_a_candidate_that_is_paused_goes_on_by_itself_unless_its_sweep_waits_for_one_that_is_held(
    monkeypatch: pytest.MonkeyPatch, states: list[State], after_s: int, *, settled: bool
) -> None:
    jobs = [SimpleNamespace(id=str(number), state=state) for number, state in enumerate(states, 1)]
    rows: list[Any] = [SimpleNamespace(name=f"rate-{job.id}", job=job) for job in jobs]
    monkeypatch.setattr(dependencies, "members", lambda _row, _store: rows)
    clock = SimpleNamespace(now=lambda: AT + timedelta(seconds=after_s))
    queries = JobQueries(cast("Any", SimpleNamespace(store=None, clock=clock)))
    said = "; its sweep waits for rate-2: runner release 2 lets that go on"
    assert queries.is_settled(rows[0]) is settled
    assert queries.blocked(rows[0]) == (said if settled and states[0] is PAUSED else "")


# --- stop


def test_a_sweep_that_is_being_stopped_is_stopped_again_and_what_cannot_be_held_comes_last() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    anywhere: Any = None

    def stopping(reason: StopReason) -> Stopping:
        return Stopping(at, "", anywhere, anywhere, reason, at)

    states = {
        "1": stopping(StopReason.PREEMPTION),
        "2": stopping(StopReason.HOLD),
        "3": stopping(StopReason.CANCELLED),
        "4": Finished(at, Outcome.SUCCEEDED, ""),
        "5": Queued(at, ""),
        "6": Held(at, "held by ada", asked=True),
    }
    rows = [SimpleNamespace(job=SimpleNamespace(id=job, state=state)) for job, state in states.items()]
    service: Any = SimpleNamespace(
        queries=SimpleNamespace(sweep=lambda _caller, _reference: rows),
        job_control=SimpleNamespace(hold=lambda _caller, job_id: job_id),
    )
    held: list[Any] = list(SweepService(service, anywhere).hold(anywhere, "1"))
    assert held == ["5", "1"]


def test_a_candidate_that_is_being_cancelled_is_not_cancelled_again() -> None:
    at, anywhere, cancelled = datetime(2030, 1, 1, tzinfo=UTC), cast("Any", None), list[str]()
    states = {
        "1": Stopping(at, "", anywhere, anywhere, StopReason.CANCELLED, at),
        "2": Stopping(at, "", anywhere, anywhere, StopReason.HOLD, at),
        "3": Finished(at, Outcome.SUCCEEDED, ""),
        "4": Queued(at, ""),
    }
    rows = {job: SimpleNamespace(job=SimpleNamespace(id=job, state=state)) for job, state in states.items()}
    service: Any = SimpleNamespace(
        queries=SimpleNamespace(current=rows.__getitem__),
        clock=SimpleNamespace(now=lambda: at),
        daemon=SimpleNamespace(
            run_exclusively=lambda end: end(),
            apply_event_to_all=lambda left, _event: cancelled.extend(row.job.id for row in left),
        ),
    )
    SweepService(service, anywhere)._end([*rows])
    assert cancelled == ["2", "4"]


# --- many sweeps


def sweeps_of(
    monkeypatch: pytest.MonkeyPatch,
    read: Mapping[str, Callable[[], object]],
    now_s: Callable[[], float] = lambda: 0.0,
) -> SweepService:
    """Return sweeps of one job and one owner each, by what is called when their candidates are read.

    That of the job 2 has a budget.
    """
    jobs = {
        first: SimpleNamespace(
            row=SimpleNamespace(
                owner=SimpleNamespace(uid=int(first)),
                terms=SimpleNamespace(
                    sweep=SimpleNamespace(id=first),
                    sweep_terms=SweepTerms("loss", budget_h=1.0 if first == "2" else None),
                ),
            )
        )
        for first in read
    }
    service: Any = SimpleNamespace(
        store=SimpleNamespace(last_seq=lambda: 1),
        clock=SimpleNamespace(monotonic=now_s),
        daemon=SimpleNamespace(tracked_jobs=jobs),
        attempt_service=SimpleNamespace(terms=lambda row: row.terms),
    )

    def rows(_sweeps: SweepService, first: str) -> tuple[()]:
        read[first]()
        return ()

    monkeypatch.setattr(SweepService, "_rows", rows)
    return SweepService(service, SimpleNamespace())  # type: ignore[arg-type]


def test_no_sweep_waits_for_the_slow_files_of_another_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    released, decided = Event(), Event()
    sweeps = sweeps_of(monkeypatch, {"1": lambda: released.wait(patience(60)), "2": decided.set})
    Thread(target=sweeps.look, daemon=True).start()
    assert decided.wait(patience(20))
    released.set()


def test_a_budget_is_looked_at_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, now_s, looked = list[str](), [0.0], Semaphore(0)

    def read(first: str) -> None:
        reads.append(first)
        looked.release()

    sweeps = sweeps_of(monkeypatch, {"1": lambda: read("1"), "2": lambda: read("2")}, lambda: now_s[0])
    sweeps.look()
    assert looked.acquire(timeout=patience(20))
    assert looked.acquire(timeout=patience(20))
    until(lambda: not sweeps._deciding, "both are decided")
    sweeps.look()
    assert sorted(reads) == ["1", "2"]
    now_s[0] = module.BUDGET_S
    sweeps.look()
    assert looked.acquire(timeout=patience(20))
    assert sorted(reads) == ["1", "2", "2"]


def test_a_sweep_that_cannot_be_read_keeps_no_other_back_and_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again, decided, reads = Event(), Event(), []

    def gone() -> None:
        reads.append(1)
        if len(reads) > 1:
            again.set()
        raise FileNotFoundError("its directory is going")

    sweeps = sweeps_of(monkeypatch, {"1": gone, "2": decided.set})
    sweeps.look()
    assert decided.wait(patience(20))
    looks = 0
    while not again.wait(0.01) and looks < 100 * patience(20):
        sweeps.look()
        looks += 1
    assert again.is_set()


def test_the_curves_of_a_candidate_that_has_ended_are_read_once_and_to_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = [
        CurveSet(
            {name: curve(points) for name in ("loss", "norm", "norm not finite", "cpus_used")},
            offset=len(points),
            lost={"val_loss"},
        )
        for points in ({5: 5.0}, {5: 5.0, 10: 9.0})
    ]
    parts[1].curves["loss"].add(9.0, 10, 0.25)
    reads: list[object] = []

    def of_job(row: object) -> CurveSet:
        reads.append(row)
        return parts[min(len(reads), 2) - 1]  # one look reads a part

    monkeypatch.setattr(module, "parse_revision", lambda _text: SimpleNamespace(sweep=None))
    service: Any = SimpleNamespace(store=SimpleNamespace(noted=lambda _job, _kind: ()))
    sweeps = SweepService(service, SimpleNamespace(of_job=of_job))  # type: ignore[arg-type]
    state = Finished(datetime(2030, 1, 1, tzinfo=UTC), Outcome.SUCCEEDED, "")
    row: Any = SimpleNamespace(revision="", job=SimpleNamespace(id="1", state=state, saved=10, lineage=1))
    terms = SweepTerms("loss", rungs=(10,))
    found = [sweeps.candidate(terms, row) for _ in range(3)]
    assert [(each.values, each.final) for each in found] == [((0.25,), 0.25)] * 3
    assert len(reads) == 3
    assert found[0].reported == {"loss", "norm", "val_loss"}, "and not what the host measures"
