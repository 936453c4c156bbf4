from typing import cast

import pytest

from runner.base.readable import readable_duration
from runner.cli import formatting as render
from runner.cli.console import harmless
from runner.cli.formatting import RateEstimate
from runner.client.types import AttemptResponse, JobDetail, ProgressResponse
from tests.fakes.daemon.api import a_job, an_attempt, ended


def job(**facts: object) -> JobDetail:
    return cast("JobDetail", {**a_job(), **facts})


def attempt(**facts: object) -> AttemptResponse:
    return cast("AttemptResponse", an_attempt(2, **facts))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0.4, "0.4s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (187, "3m07s"),
        (7500, "2h05m"),
        (273_600, "3d04h"),
    ],
)
def test_a_duration_has_two_figures(seconds: float, text: str) -> None:
    assert readable_duration(seconds) == text


def test_an_age_counts_from_a_time_in_utc() -> None:
    assert render.age("1970-01-01T00:01:00.000Z", 150.0) == "1m30s"
    assert render.age(None, 150.0) == "-"


def test_throughput_is_shortened() -> None:
    assert [render.count(n) for n in (0, 949.6, 5123, 3.2e6, 4e9)] == ["0", "950", "5.1k", "3.2M", "4.0G"]


def test_the_progress_line_has_step_throughput_loss_and_time_to_go() -> None:
    progress: ProgressResponse = {
        "phase": "train",
        "step": 120,
        "total_steps": 400,
        "items_per_s": 5123,
        "loss": 2.3,
    }
    assert render.progress_line(progress, 70.0) == "step 120/400  5.1k items/s  loss 2.3000  eta 1m10s"


def test_a_step_that_a_report_does_not_tell_is_not_shown_as_zero() -> None:
    told: ProgressResponse = {"phase": "train", "step": None, "total_steps": 100, "loss": 0.5}
    assert render.progress_line(told, None) == "loss 0.5000"
    assert render.progress_share(job(progress=told, saved_step=None)) == "-"
    assert render.progress_share(job(progress=told, saved_step=40)) == "40"
    assert RateEstimate().eta_s(told) is None


def test_the_progress_line_leaves_out_what_nobody_knows_and_names_an_unusual_phase() -> None:
    assert render.progress_line({"phase": "compile"}, None) == "compile  step 0"


def test_the_time_to_go_comes_from_the_programs_own_clock() -> None:
    pace = RateEstimate()
    pace.see({"time": 100.0, "step": 10, "total_steps": 100})
    assert pace.eta_s({"step": 10, "total_steps": 100}) is None
    pace.see({"time": 100.5, "step": 10, "total_steps": 100})
    pace.see({"time": 110.0, "step": 30, "total_steps": 100})
    assert pace.eta_s({"step": 30, "total_steps": 100}) == pytest.approx(35.0)
    assert pace.eta_s({"step": 30, "total_steps": None}) is None


def test_the_pace_begins_anew_when_the_steps_go_back() -> None:
    pace = RateEstimate()
    for time, step in ((0.0, 10), (1.0, 90), (60.0, 50), (70.0, 60)):
        pace.see({"time": time, "step": step, "total_steps": 100})
    assert pace.eta_s({"step": 60, "total_steps": 100}) == pytest.approx(40.0)


def test_the_pace_survives_reports_without_progress_in_time() -> None:
    pace = RateEstimate()
    pace.see({"time": 5.0, "step": 1, "total_steps": 9})
    pace.see({"time": 5.0, "step": 2, "total_steps": 9})
    assert pace.eta_s({"step": 2, "total_steps": 9}) == 0


def test_one_word_says_where_a_job_stands() -> None:
    assert render.state_word(job()) == "running"
    assert render.state_word(job(**ended("failed"))) == "failed"


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (ended("succeeded"), 0),
        (ended("failed"), 10),
        (ended("cancelled"), 11),
        ({"state": "held"}, 12),
    ],
)
def test_the_exit_code_tells_how_a_job_ended(facts: dict[str, object], code: int) -> None:
    assert render.exit_code(job(**facts)) == code


def test_the_state_line_names_attempt_and_devices_only_where_there_are_some() -> None:
    assert render.state_line(job()) == "train: running (attempt 1 on cpu)"
    assert render.state_line(job(gpus=["GPU-1", "GPU-2"])).endswith("(attempt 1 on GPU-1, GPU-2)")
    assert render.state_line(job(state="queued", why="waits for 1 GPU")) == "train: queued: waits for 1 GPU"


def test_the_line_of_an_ended_attempt_has_code_cause_and_verdict() -> None:
    line = render.attempt_line(attempt(exit_code=137, cause="killed", verdict="resuming from step 50"))
    assert line == "attempt 2 ended (exit 137): killed; resuming from step 50"
    assert render.attempt_line(attempt(cause="vanished")) == "attempt 2 ended: vanished"
    assert render.attempt_line(attempt(cause="x", message="disk full")) == "attempt 2 ended: disk full"


def test_the_line_of_a_job_that_ended_proves_its_weights() -> None:
    done = job(
        **ended(), attempt=2, attempts=[attempt(resumed_from=50)], result={"weights_sha256": "ab" * 32}
    )
    assert (
        render.end_line(done) == f"train: succeeded after 2 attempts: completed; weights sha256 {'ab' * 32}"
    )
    assert render.end_line(job(**ended())) == "train: succeeded: completed"


def test_the_line_of_a_job_that_began_again_without_a_checkpoint_says_so() -> None:
    attempts = [attempt()]
    begun = job(**ended(), attempt=2, attempts=attempts)
    without = "train: succeeded after 2 attempts, the last without a known checkpoint: completed"
    assert render.end_line(begun) == without
    assert render.end_line({**begun, "saved_version": 3}) == "train: succeeded after 2 attempts: completed"
    attempts[-1]["resumed_from"] = 40
    assert render.end_line(begun) == "train: succeeded after 2 attempts: completed"


def test_the_columns_of_the_list_are_those_that_are_promised() -> None:
    assert render.list_cells(job(why="x")) == (
        "000001", "train", "ada", "running", 1, 0, "10/100", "2026-03-01T12:00:00.000Z", "x",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        ({"progress": None, "saved_step": 50}, "50"),
        ({"progress": None, "saved_step": None}, "-"),
        ({"progress": None}, "-"),
        ({"saved_step": 5}, "10/100"),
    ],
)
def test_where_nobody_says_how_far_a_job_is_the_step_is_the_saved_one(
    facts: dict[str, object], step: str
) -> None:
    assert render.list_cells(job(**facts))[6] == step


def test_facts_leave_out_what_is_empty_and_keep_a_zero() -> None:
    facts = dict(render.facts(job(labels={"team": "nlp"}, progress=None)))
    assert facts["priority"] == 0
    assert facts["labels"] == "team=nlp"
    assert "weights_sha256" not in facts
    assert "step" not in facts


def test_an_attempt_shows_how_long_it_ran_and_one_that_runs_says_so() -> None:
    row = dict(
        zip(
            render.ATTEMPT_COLUMNS,
            render.attempt_cells(attempt(ended_at="2026-03-01T12:03:07Z")),
            strict=True,
        )
    )
    assert row["ran"] == "3m07s"
    assert row["cause"] is None
    assert "running" in render.attempt_cells(attempt())


def test_what_others_wrote_cannot_move_the_cursor() -> None:
    assert harmless("plain ü") == "plain ü"
    assert harmless("\x1b[2Jgone\r\n\u202e") == r"\x1b[2Jgone\r\n\u202e"
    assert harmless("a\tb\n", keep="\t\n") == "a\tb\n"
    assert harmless("bad \udcff") == r"bad \udcff"


def test_a_version_is_not_called_a_step() -> None:
    assert dict(render.facts(job(progress=None, saved_step=None, saved_version=3)))["step"] == "version 3"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "resume from step 4000 with micro-batch 256 → 128: device out of memory in train",
            "resumed from step 4000 with micro-batch 256 → 128: device out of memory in train",
        ),
        ("restart from step 0: killed", "restarted from step 0: killed"),
        ("held: no valid checkpoint", None),  # somebody has released it since
        ("completed", None),
    ],
)
def test_the_last_verdict_is_told_as_what_was_done_since(said: str, shown: str | None) -> None:
    attempts = [an_attempt(1, verdict="restart from step 0: x"), an_attempt(2, verdict=said), an_attempt(3)]
    facts = dict(render.facts(job(attempts=attempts, why="completed", settings={"micro_batch": 128})))
    assert facts.get("verdict") == shown
    assert facts["settings"] == "micro_batch=128"
    assert "verdict" not in dict(render.facts(job()))
    held = dict(render.facts(job(attempts=attempts[:2], state="held")))
    assert held["verdict"] == (shown or said)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (None, ""),
        (
            {"steps_per_epoch": 1234, "done": 1.5, "total": 5.0, "epoch_s": 3.14},
            "1.5 of 5, of 1,234 steps, 3.1s each",
        ),
        ({"steps_per_epoch": 40, "done": 2.0, "total": None, "epoch_s": 90.0}, "2, of 40 steps, 1m30s each"),
        ({"steps_per_epoch": 40, "done": 0.025, "total": None, "epoch_s": None}, "0.025, of 40 steps"),
    ],
)
def test_epochs_are_told_with_their_length(known: dict[str, object] | None, text: str) -> None:
    assert render.epochs_text(job(epochs=known)) == text


def test_a_job_that_has_no_epochs_tells_nothing_of_them() -> None:
    assert render.epochs_text(job()) == ""


TRACE = {
    "attempt": 2,
    "first_step": 100,
    "last_step": 110,
    "seconds": 0.25,
    "file": "steps.pt.trace.json.gz",
    "operators": [{"name": "aten::mm", "calls": 40, "cpu_s": 0.0125, "device_s": 0.2}],
}


def test_a_trace_is_told_with_its_steps_and_its_place() -> None:
    place = "/state/jobs/7/attempts/2/steps.pt.trace.json.gz"
    found = job(trace=TRACE, run_dir="/state/jobs/7")
    assert render.trace_text(found) == f"steps 100 to 110, 25 ms each; {place}"
    assert list(render.operator_rows(found)) == [(40, "12.50", "200.00", "aten::mm")]
    assert render.trace_text(job(trace={**TRACE, "file": ""})) == "steps 100 to 110, 25 ms each; not kept"


def test_a_job_without_a_trace_has_no_rows_of_operators() -> None:
    assert render.trace_text(job()) == ""
    assert list(render.operator_rows(job())) == []


def test_disk_rates_are_told_with_their_sums() -> None:
    known = {"read_per_s": 12.5e6, "written_per_s": 0.0, "read_bytes": 3_000_000_000, "written_bytes": 950}
    text = "reads 11.9 MiB/s, writes 0 B/s; 2.8 GiB read, 950 B written"
    assert render.disk_text(job(disk=known)) == text
    assert render.disk_text(job(disk=None)) == render.disk_text(job()) == ""


def test_what_was_set_aside_is_named_with_its_attempt() -> None:
    assert render.set_aside_text(job()) == ""
    found = render.set_aside_text(job(attempts=[attempt(set_aside=["a/c-1"])]))
    assert found == "a/c-1 (for attempt 2); runner restart --from STEP puts them back"
    many = render.set_aside_text(job(attempts=[attempt(set_aside=[f"c-{n}" for n in range(7)])]))
    assert many.endswith("c-4 (for attempt 2) and 2 more; runner restart --from STEP puts them back")


@pytest.mark.parametrize("left", ["3.5s", "3s", "42s", "1m", "3m07s", "2h", "3d04h"])
def test_a_countdown_is_no_other_reason_whatever_its_units(left: str) -> None:
    whys = {render.without_counts(f"train: queued: backoff, {each} left") for each in (left, "9.9s")}
    assert len(whys) == 1
    assert render.without_counts("waits for 2 GPUs") != render.without_counts("waits for 2 CPUs")
