"""The curves of jobs and of devices: kept, caught up on, and bounded."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from runner.adapters.host import user_outputs
from runner.adapters.host.curve_files import CurveFiles
from runner.adapters.host.user_outputs import UserOutputs
from runner.agent.attempts import service as attempts
from runner.base.errors import Unavailable
from runner.base.fair_executor import FairExecutor
from runner.core.accounting.curve_set import NewNumbers
from runner.core.notification import ReportedCurve
from runner.core.ports.disk import DiskCounters, DiskRates
from runner.server.api import curves
from runner.services import curves as module
from runner.services.curves import TRAFFIC, CurveService
from runner.services.sweeps import _value_at
from tests.fakes.engine.keyed_executor import AtOnce
from tests.fakes.patience import patience
from tests.unit.runner.server.api.test_jobs import JOB
from tests.unit.runner.server.api.test_overview import GPU_JOB, Place


class Drawn(Place):
    """A site whose curves are looked at when a test says so."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.restart()

    def restart(self) -> None:
        """Begin with what is on the disk, as a new daemon does."""
        self.curves = CurveService(self.service, CurveFiles(self.directory / "curves"), AtOnce())
        curves.attach(self.app, self.curves)

    def writes(self, *steps: int, **numbers: float) -> None:
        with (self.attempt_dir("1") / "metrics.jsonl").open("a") as file:
            for step in steps:
                said = {"time": 1000.0 + step, "step": step, "loss": 1 / (step + 1), **numbers}
                file.write(json.dumps(said) + "\n")

    def steps(self, name: str = "loss") -> list[int]:
        found: dict[str, Any] = self.ask("GET", "/jobs/1/curves").json()["curves"]
        return [point[1] for point in found.get(name, [])]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Drawn]:
    place = Drawn(tmp_path)
    yield place
    place.service.daemon.stop()


def test_a_job_has_the_curves_of_the_numbers_it_wrote(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    place.writes(10, 20, accuracy=0.5)
    answer = place.ask("GET", "/jobs/1/curves").json()
    assert (answer["job"], sorted(answer["curves"])) == ("1", ["accuracy", "loss"])
    assert answer["curves"]["accuracy"] == [[1010.0, 10, 0.5, 0.5, 0.5, 1], [1020.0, 20, 0.5, 0.5, 0.5, 1]]


def test_nothing_is_lost_or_doubled_when_the_daemon_begins_again(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    place.writes(10, 20)
    place.curves.sample()
    place.writes(30)  # nobody looks before the daemon dies
    place.restart()
    place.writes(40)
    place.curves.sample()
    assert place.steps() == [10, 20, 30, 40]
    place.curves.stop()
    place.restart()
    assert place.steps() == [10, 20, 30, 40]


def test_steps_that_a_resumed_attempt_repeats_are_there_once(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    place.writes(10, 20, 30)
    assert place.steps() == [10, 20, 30]
    place.writes(20, 30, 40)
    assert place.steps() == [10, 20, 30, 40]


def test_the_devices_of_a_job_are_sampled_beside_what_it_says(place: Drawn) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.reports(loss=0.25, items_per_s=100.0)
    place.curves.sample()
    found = place.ask("GET", "/jobs/1/curves").json()["curves"]
    assert {name: points[0][2] for name, points in found.items()} == {
        "loss": 0.25, "items_per_s": 100.0, "device 0 util": 40.0, "device 0 memory": 0.5,
    }  # fmt: skip
    history = place.ask("GET", "/devices/history").json()["curves"]
    assert {name: points[0][2] for name, points in history.items()} == {
        "GPU-a util": 40.0, "GPU-a memory": 0.5, "GPU-b util": 40.0, "GPU-b memory": 0.5,
    }  # fmt: skip


def test_the_account_of_a_program_without_reports_has_its_devices_and_their_energy(place: Drawn) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    assert place.ask("GET", "/jobs/1/account").json()["used"]["energy_wh"] is None
    for counter in (1000.0, 8200.0):
        place.lately.energies = dict.fromkeys(("GPU-a", "GPU-b"), counter)
        place.curves.sample()
    used = place.ask("GET", "/jobs/1/account").json()["used"]
    assert used["energy_wh"] == 2.0
    assert used["devices"]["device 0 util"] == {"peak": 40.0, "mean": 40.0}
    assert used["network_sent_per_s"] is None


def test_what_is_measured_on_the_host_goes_on_after_a_restart_from_scratch(place: Drawn) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.writes(10, 20)
    context = place.service.daemon.context
    counters = DiskCounters(0, 0, resident_bytes=9 << 30)
    context.disk.current = {context.key("1", 1): DiskRates(0.0, 0.0, counters, 3.0)}
    place.curves.sample()
    row = place.service.store.following("1", 1)[0]
    kept = place.curves.of_job(replace(row, job=replace(row.job, lineage=2))).curves
    assert "loss" in place.curves.of_job(row).curves
    assert {name for name in kept if name not in TRAFFIC} == {
        "resident_bytes", "cpus_used", "device 0 util", "device 0 memory",
    }  # fmt: skip


def test_names_that_were_never_finite_are_known_until_a_restart_from_scratch(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    place.writes(1, val_loss=float("nan"))
    row = place.service.store.get("1")
    assert row is not None
    place.curves.of_job(row)
    place.restart()
    assert place.curves.of_job(row).metrics() == {"loss", "val_loss"}
    assert place.curves.of_job(replace(row, job=replace(row.job, lineage=2))).metrics() == set()


def test_the_history_of_devices_is_kept_and_ends_after_a_day(
    place: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.curves.sample()
    place.curves.stop()
    place.restart()
    assert "GPU-a util" in place.ask("GET", "/devices/history").json()["curves"]
    monkeypatch.setattr("runner.services.curves.HISTORY_S", -1.0)
    place.curves.sample()
    assert place.ask("GET", "/devices/history").json()["curves"]["GPU-a util"] == []


def test_what_a_job_wrote_at_its_end_is_kept_too(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    place.writes(10)
    place.curves.sample()
    place.writes(20)
    place.ask("POST", "/jobs/1/cancel", {})
    place.until("finished")
    place.curves.sample()
    kept = json.loads((place.directory / "curves" / "1.json").read_text())
    assert [point[1] for point in kept["curves"]["loss"]["points"]] == [10, 20]


@pytest.mark.parametrize("looked_before", [True, False])
def test_what_a_job_told_last_is_there_when_it_ends_between_two_looks(
    place: Drawn, *, looked_before: bool
) -> None:
    place.submit(JOB)
    place.until("running")
    if looked_before:
        place.reports(step=10, loss=0.5)
        place.curves.sample()
    place.reports(step=90, loss=0.25)
    place.ask("POST", "/jobs/1/cancel", {})
    place.until("finished")
    for _ in range(2):
        assert place.steps() == ([10, 90] if looked_before else [90])
        place.curves.sample()
        place.restart()
    found = place.ask("GET", "/jobs/1/curves").json()["curves"]["loss"]
    assert found[-1][1:] == [90, 0.25, 0.25, 0.25, 1]


PROGRAM = "workload: {kind: program, command: [./train]}\nretry: {max_attempts: 1}\n"


def logged(place: Drawn, *lines: str) -> None:
    with (place.attempt_dir("1") / "log.txt").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("restarts", [False, True])
def test_every_line_of_a_log_is_a_point_of_the_curve(place: Drawn, *, restarts: bool) -> None:
    place.submit(PROGRAM)
    place.until("running")
    logged(place, *(f"step {step}/30 loss 0.{step}" for step in range(10, 20)))
    place.curves.sample()
    logged(place, *(f"step {step}/30 loss 0.{step}" for step in range(20, 30)))
    place.service.queries.progress(place.service.store.following("1", 1)[0])  # somebody else looks
    if restarts:
        place.curves.stop()
        place.restart()
    logged(place, "step 30/30 loss 0.30")
    place.ask("POST", "/jobs/1/cancel", {})
    place.until("finished")
    assert place.steps() == [*range(10, 31)]


def test_a_loss_of_a_log_that_is_not_finite_is_lost_in_the_curve_and_valid_in_json(place: Drawn) -> None:
    place.submit(PROGRAM)
    place.until("running")
    logged(place, "step 1/30 loss nan", *(f"step {step}/30 loss 0.001" for step in range(2, 6)))
    place.curves.sample()
    logged(place, *(f"step {step}/30 loss nan" for step in range(6, 31)))
    place.curves.sample()
    assert place.steps() == [2, 3, 4, 5]
    assert place.steps("loss not finite") == [*range(6, 31)]
    curves = place.curves.of_job(place.service.store.following("1", 1)[0]).curves
    assert _value_at(curves, "loss", None) is None
    assert _value_at(curves, "loss", 5) == 0.001
    told = place.ask("GET", "/jobs/1").json()["progress"]
    assert (told["step"], told["loss"]) == (30, None)


def test_points_without_steps_are_not_doubled_when_the_daemon_begins_again(place: Drawn) -> None:
    place.submit(PROGRAM)
    place.until("running")
    logged(place, "{'loss': 0.5}", "{'loss': 0.25}")
    place.curves.sample()
    place.curves.stop()
    place.restart()
    attempts._directory.cache_clear()
    logged(place, "{'loss': 0.125}")
    place.curves.sample()
    logged(place, "{'loss': 0.0625}")
    place.curves.sample()
    found = place.ask("GET", "/jobs/1/curves").json()["curves"]["loss"]
    assert [point[2] for point in found] == [0.5, 0.25, 0.0625]


def test_the_points_of_a_log_without_steps_are_in_the_order_of_time(place: Drawn) -> None:
    place.submit(PROGRAM)
    place.until("running")
    logged(place, "{'loss': 0.5, 'epoch': 0.37}", "{'loss': 0.25, 'epoch': 0.74}")
    place.curves.sample()
    logged(place, "{'loss': nan, 'epoch': 1.1}")
    place.curves.sample()
    found = place.ask("GET", "/jobs/1/curves").json()["curves"]
    assert [point[1:3] for point in found["loss"]] == [[None, 0.5], [None, 0.25]]
    curves = place.curves.of_job(place.service.store.following("1", 1)[0]).curves
    assert _value_at(curves, "loss", None) is None
    told = place.ask("GET", "/jobs/1").json()
    assert (told["progress"]["step"], told["progress"]["loss"]) == (None, None)


def test_a_disk_that_fails_costs_no_curve_that_is_in_memory(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    (place.directory / "curves").write_text("in the way")
    place.writes(10)
    place.curves.sample()
    assert place.steps() == [10]


def test_the_curves_of_jobs_that_are_gone_are_removed(place: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    files = CurveFiles(place.directory / "curves")
    files.write("77", {})
    monkeypatch.setattr("runner.services.curves.FORGOTTEN_EVERY", 1)
    place.curves.sample()
    assert files.names() == ("devices",)


def test_notifications_are_told_the_loss_of_a_job(place: Drawn) -> None:
    assert place.curves.reported("1") is None
    place.submit(JOB)
    place.until("running")
    assert place.curves.reported("1") is None
    with (place.attempt_dir("1") / "metrics.jsonl").open("a") as file:
        for step in (1, 2):
            file.write(
                json.dumps({"time": 1000.0 + step, "step": step, "rate": 7.0, "eval_loss": 3.0}) + "\n"
            )
    assert place.curves.reported("1") == ReportedCurve("eval_loss", ((1, 3.0), (2, 3.0)))
    place.writes(3, 4)
    found = place.curves.reported("1")
    assert found is not None
    assert found.text == "loss 0.2 at step 4, from 0.2 to 0.25"


def test_notifications_wait_once_for_files_that_do_not_answer(
    place: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit(JOB)
    place.until("running")
    place.writes(1)
    asked: list[int] = []

    def read(_outputs: UserOutputs, _file: int, offset: int) -> NewNumbers:
        asked.append(offset)
        raise Unavailable("no answer from the file systems of ada")

    monkeypatch.setattr(UserOutputs, "read_numbers", read)
    with pytest.raises(Unavailable, match="no answer"):
        place.curves.reported("1")
    assert place.curves.reported("1") is None
    assert len(asked) == 1


ADA, BOB = 4241, 4242


class Busy:
    """A reader of files that is at one owner's file for as long as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.ends = Event(), Event()
        self.read, self.is_first = UserOutputs.read_numbers, True

        def read(outputs: UserOutputs, file: int, offset: int) -> NewNumbers:
            return self._read(outputs, file, offset)

        monkeypatch.setattr(UserOutputs, "read_numbers", read)

    def _read(self, outputs: UserOutputs, file: int, offset: int) -> NewNumbers:
        if self.is_first:
            self.is_first = False
            self.began.set()
            assert self.ends.wait(patience(30))
        return self.read(outputs, file, offset)


def test_nobody_waits_for_the_numbers_of_another(place: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither who asks for curves, nor the samples of running jobs."""
    for uid in (ADA, BOB):
        assert place.submit(JOB, uid).status_code == 201
    place.until("running", "1")
    place.until("running", "2")
    for job_id in ("1", "2"):
        (place.attempt_dir(job_id) / "metrics.jsonl").write_text('{"time": 1, "step": 1, "loss": 1}\n')
    rows = {row.owner.uid: row for row in place.service.store.recent(place.service.clock.now(), None, 9)}
    busy = Busy(monkeypatch)
    reader = Thread(target=place.curves.of_job, args=(rows[ADA],), daemon=True)
    reader.start()
    assert busy.began.wait(patience(30))
    try:
        for work in (lambda: place.curves.of_job(rows[BOB]), place.curves.sample, place.curves.of_devices):
            other = Thread(target=work, daemon=True)
            other.start()
            other.join(patience(30))
            assert not other.is_alive()
        assert place.curves.of_job(rows[BOB]).curves
        monkeypatch.setattr(module, "READ_S", 0.0)
        assert place.curves.reported(rows[ADA].job.id) is None
    finally:
        busy.ends.set()
        reader.join(patience(30))


def test_nobodys_jobs_are_sampled_later_for_the_files_of_another_owner(
    place: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id, uid in (("1", ADA), ("2", BOB)):
        assert place.submit(JOB, uid).status_code == 201
        place.until("running", job_id)
        (place.attempt_dir(job_id) / "metrics.jsonl").write_text('{"time": 1, "step": 1, "loss": 1}\n')
    place.curves.work, busy, told = FairExecutor("test", threads_per_user=1), Busy(monkeypatch), Event()
    place.curves.sample()
    assert busy.began.wait(patience(30))
    place.curves.work.put(str(ADA), told.set)
    place.curves.work.put(str(BOB), told.set)
    try:
        assert told.wait(patience(30))
        assert len(place.curves._live) == 2
    finally:
        busy.ends.set()


def test_a_look_at_running_jobs_reads_a_part_and_the_next_goes_on(
    place: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit(JOB)
    place.until("running")
    monkeypatch.setattr(user_outputs, "PIECE_BYTES", 200)
    place.writes(*range(100))
    place.curves.sample()
    read = place.curves._live["1"][1].offset
    assert 0 < read <= 200 * module.SAMPLED_PIECES
    place.curves.sample()
    assert read < place.curves._live["1"][1].offset <= 2 * read + 200
    for _ in range(10):
        place.steps()
    assert place.steps()[-1] == 99
