from typing import TYPE_CHECKING, Any, cast

import pytest

from runner.cli.formatting import unix
from runner.cli.job_tables import format_job, make_job_table
from runner.cli.table import format_table
from tests.fakes.daemon.api import AT, a_job, an_attempt, ended

if TYPE_CHECKING:
    from runner.client.types import JobDetail, JobSummary

NOW = unix(AT) + 90


def table_of(rows: list[dict[str, Any]], width: int) -> list[str]:
    return format_table(make_job_table(cast("list[JobSummary]", rows), NOW), width, wrap=True)


def test_the_table_of_jobs_has_one_row_each_with_ages_and_progress() -> None:
    rows = [a_job("1", "one"), {**a_job("2", "two"), **ended("failed", "[bold]why[/bold] \x1b[2J")}]
    head, one, two = table_of(rows, 140)
    assert head.split() == ["JOB", "NAME", "OWNER", "STATE", "TRY", "STEP", "SINCE", "WHY"]
    assert one.split() == ["1", "one", "ada", "running", "1", "10/100", "1m30s"]
    assert "failed" in two
    assert r"[bold]why[/bold] \x1b[2J" in two


def test_the_list_has_the_beginning_of_a_long_reason_of_an_end() -> None:
    waits = "waits for " + "much " * 30
    rows = [
        {**a_job("1"), **ended("failed", "exception: " + "x" * 100 + "; mount it (--mount a:b)\nand more")},
        {**a_job("2"), "state": "queued", "why": waits},
    ]
    text = "\n".join(table_of(rows, 180))
    assert "exception: " + "x" * 89 + " ...\n" in text
    assert text.count("much") == 30


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (81, "JOB NAME OWNER STATE TRY STEP SINCE WHY"),
        (80, "JOB NAME OWNER STATE STEP SINCE WHY"),
        (61, "JOB NAME OWNER STATE WHY"),
        (40, "JOB STATE WHY"),
    ],
)
def test_a_narrow_screen_keeps_the_id_and_the_state(width: int, columns: str) -> None:
    rows = [
        a_job("10429", "experiment-alpha-1429"),
        {**a_job("10430", "beta"), "state": "queued", "why": "waits for 1 GPU"},
    ]
    head, *lines = table_of(rows, width)
    assert head.split() == columns.split()
    assert all(len(line) <= width for line in lines)
    assert [line.split()[0] for line in lines if line.startswith("104")] == ["10429", "10430"]
    assert "waits for 1 GPU" in " ".join(" ".join(lines).split())


def test_the_page_of_a_job_tells_its_attempts_with_cause_verdict_and_checkpoints() -> None:
    first = an_attempt(
        1, ended_at="2026-03-01T12:01:00Z", exit_code=137, cause="killed", checkpoint_step=50,
        verdict="killed: resuming from step 50",
    )  # fmt: skip
    second = an_attempt(2, resumed_from=50)
    job = {
        **a_job(),
        **ended(),
        "attempts": [first, second],
        "result": {"weights_sha256": "cd" * 32, "step": 100},
    }
    text = "\n".join(format_job(cast("JobDetail", job), NOW, 160))
    assert "cd" * 32 in text
    assert "/state/jobs/000001" in text
    assert "(1m30s ago)" in text
    killed = next(line for line in text.splitlines() if "137" in line)
    assert killed.split() == [
        "1",
        "1",
        "1m",
        "137",
        "killed",
        "-",
        "50",
        *["killed:", "resuming", "from", "step", "50"],
    ]


def test_a_job_without_attempts_has_no_table_of_them() -> None:
    lines = format_job(cast("JobDetail", {**a_job(), "attempts": []}), NOW, 160)
    assert "CAUSE" not in "\n".join(lines)


def test_on_a_narrow_screen_verdicts_stand_below_their_attempts() -> None:
    verdict = "restart with the same HOME; the runner knows of no checkpoint: exception"
    job = {**a_job(), "attempts": [an_attempt(1, verdict=verdict), an_attempt(2)]}
    lines = format_job(cast("JobDetail", job), NOW, 80)
    head = next(number for number, line in enumerate(lines) if line.startswith("ATTEMPT"))
    assert "VERDICT" not in lines[head]
    assert lines[head + 2] == f"  {verdict}"
    assert lines[head + 3].startswith("2 ")
    assert max(map(len, lines)) <= 80


def test_the_table_of_a_trace_stands_below_the_attempts() -> None:
    slow = {"name": "aten::mm", "calls": 40, "cpu_s": 0.0125, "device_s": 0.2}
    trace = {"attempt": 1, "first_step": 1, "last_step": 2, "seconds": 1.0, "file": "", "operators": [slow]}
    lines = format_job(cast("JobDetail", {**a_job(), "trace": trace}), 0.0, 100)
    assert lines[-2:] == ["CALLS  CPU MS  DEVICE MS  OPERATOR", "40     12.50   200.00     aten::mm"]
