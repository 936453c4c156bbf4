"""Reports as the host reads them: throttled, replaced whole, never fatal."""

from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.checkpoint import durable as files
from jobs.contract import MAX_REPORT_BYTES, Cause, Phase, Rejected, Result, RunPaths, Status
from jobs.training.phases import Phases, StepTime, Throughput
from jobs.training.report import Progress, Reporter, say


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path, 1, 1)
    paths.attempt_dir.mkdir(parents=True)
    return paths


def status(paths: RunPaths) -> Status:
    return Status.model_validate_json(paths.status.read_bytes())


def test_heartbeats_of_one_phase_come_twice_a_second_at_most(paths: RunPaths) -> None:
    clock = Clock()
    reporter = Reporter(paths, clock)
    reporter.begin()
    took = StepTime(10, 0.125)
    seen = []
    for step in range(1, 13):
        clock.now += 0.125
        reporter.stepped(step, 1.0, took)
        seen.append(status(paths).step)
    assert seen == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12]


def test_a_heartbeat_counts_the_items_since_the_attempt_began(paths: RunPaths) -> None:
    clock = Clock()
    reporter = Reporter(paths, clock)
    for step in range(1, 101):  # more than the pace looks back on
        clock.now += 1
        reporter.stepped(step, 1.0, StepTime(10, 1.0))
    assert (status(paths).items, status(paths).items_per_s) == (1000, 10.0)


def test_a_heartbeat_tells_how_much_of_an_evaluation_is_left(paths: RunPaths) -> None:
    clock = Clock()
    reporter = Reporter(paths, clock)
    with reporter.within(Phase.EVAL):
        assert (status(paths).eval_s, status(paths).eval_left_s) == (None, None)
        clock.now += 10
        reporter.evaluated(0.25, 10.0)
        assert (status(paths).eval_s, status(paths).eval_left_s) == (40.0, 30.0)
    assert (status(paths).phase, status(paths).eval_left_s) == (Phase.INIT, None)


def test_a_change_of_phase_is_told_at_once(paths: RunPaths) -> None:
    reporter = Reporter(paths, Clock())
    reporter.begin()
    assert status(paths).phase is Phase.INIT
    with reporter.within(Phase.TRAIN):
        with reporter.within(Phase.EVAL):
            assert status(paths).phase is Phase.EVAL
        assert status(paths).phase is Phase.TRAIN
    assert status(paths).phase is Phase.INIT


def ended_in(paths: RunPaths, reporter: Reporter) -> Phase | None:
    reporter.finish(Cause.EXCEPTION, "it broke")
    assert status(paths).phase is Phase.DRAIN
    return Result.model_validate_json(paths.result.read_bytes()).phase


def test_the_result_says_what_it_was_doing_when_it_broke(paths: RunPaths) -> None:
    reporter = Reporter(paths, Clock())
    reporter.begin()

    def break_in_evaluation() -> None:
        with reporter.within(Phase.TRAIN), reporter.within(Phase.EVAL):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_in_evaluation()
    assert ended_in(paths, reporter) is Phase.EVAL


def test_an_error_that_was_got_over_is_not_where_it_broke(paths: RunPaths) -> None:
    reporter = Reporter(paths, Clock())
    with pytest.raises(RuntimeError), reporter.within(Phase.SAVE):
        raise RuntimeError
    with reporter.within(Phase.EVAL):
        pass
    with pytest.raises(RuntimeError), reporter.within(Phase.TRAIN):
        raise RuntimeError
    assert ended_in(paths, reporter) is Phase.TRAIN


def test_what_broke_between_two_phases_broke_where_it_was(paths: RunPaths) -> None:
    assert ended_in(paths, Reporter(paths, Clock())) is Phase.INIT


def test_work_that_is_done_broke_nowhere(paths: RunPaths) -> None:
    Reporter(paths, Clock()).finish(Cause.COMPLETED, "done")
    assert Result.model_validate_json(paths.result.read_bytes()).phase is None


def test_a_number_that_json_cannot_carry_is_left_out(paths: RunPaths) -> None:
    reporter = Reporter(paths)
    reporter.stepped(1, float("nan"), StepTime(1, 1.0))
    reporter.progress.metrics = {"good": 1.0, "bad": float("inf")}
    reporter.metric(step=1, loss=float("nan"))
    reporter.finish(Cause.NON_FINITE, "nan")
    assert status(paths).loss is None
    assert '"loss": null' in paths.metrics.read_text()
    assert "bad" not in Result.model_validate_json(paths.result.read_bytes()).metrics


def test_a_result_stays_within_what_is_read_of_it(paths: RunPaths) -> None:
    reporter = Reporter(paths)
    reporter.progress = Progress(rejected=tuple(Rejected(name="n" * 200, why="w" * 1000) for _ in range(40)))
    reporter.finish(Cause.NO_VALID_CHECKPOINT, "m" * 9000)
    assert paths.result.stat().st_size < MAX_REPORT_BYTES
    result = Result.model_validate_json(paths.result.read_bytes())
    assert (len(result.message), len(result.rejected)) == (4000, 20)


def test_reports_that_cannot_be_written_are_said_once(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    paths.attempt_dir.rmdir()
    reporter = Reporter(paths)
    reporter.begin()
    reporter.beat()
    reporter.beat()
    reporter.metric(step=1)
    reporter.finish(Cause.COMPLETED, "")
    said = capfd.readouterr().err.splitlines()
    assert sorted(line.split()[1] for line in said) == ["metrics.jsonl", "result.json", "status.json"]


def test_a_line_stays_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    say("two\nlines and \udcff")
    assert capfd.readouterr().out == "two lines and \\udcff\n"


def test_a_reserved_file_appears_only_when_it_is_written(tmp_path: Path) -> None:
    reserved = files.ReservedFile(tmp_path / "result.json", 4096)
    assert not (tmp_path / "result.json").exists()
    reserved.publish(b"{}")
    assert (tmp_path / "result.json").read_bytes() == b"{}"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_the_pace_is_that_of_the_last_steps(advance: Callable[[Throughput], None]) -> None:
    throughput = Throughput()
    assert (throughput.items_per_s, throughput.data_wait, throughput.seconds_for(5)) == (None, None, None)
    advance(throughput)
    assert throughput.items_per_s == pytest.approx(100)
    assert throughput.data_wait == pytest.approx(0.25)
    assert throughput.seconds_for(10) == pytest.approx(1.0)


@pytest.fixture
def advance() -> Callable[[Throughput], None]:
    def slow_then_fast(throughput: Throughput) -> None:
        for seconds in [9.0] * 10 + [0.1] * 32:
            throughput.add(StepTime(10, seconds, {"data": seconds / 4}))

    return slow_then_fast


def test_only_the_inner_phase_counts_its_seconds() -> None:
    clock = Clock()
    phases = Phases(clock)
    with phases.within(Phase.TRAIN):
        clock.now += 5
        with phases.within(Phase.SAVE):
            clock.now += 2
        clock.now += 1
    assert phases.seconds() == {"init": 0.0, "train": 6.0, "save": 2.0}
