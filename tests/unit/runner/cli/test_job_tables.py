from io import StringIO
from typing import TYPE_CHECKING, cast

import pytest
from rich.console import Console

from runner.cli.formatting import unix
from runner.cli.job_tables import print_job, print_jobs
from runner.cli.live_progress import LiveView
from tests.fakes.daemon.api import AT, a_job, an_attempt, ended

if TYPE_CHECKING:
    from runner.client.types import JobDetail, JobSummary

NOW = unix(AT) + 90


def paper(width: int = 140) -> Console:
    return Console(file=StringIO(), width=width, color_system=None)


def written(console: Console) -> str:
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_the_table_of_jobs_has_one_row_each_with_ages_and_progress() -> None:
    console = paper()
    rows = [a_job("1", "one"), {**a_job("2", "two"), **ended("failed", "[bold]why[/bold] \x1b[2J")}]
    print_jobs(cast("list[JobSummary]", rows), NOW, console)
    head, one, two = written(console).splitlines()
    assert head.split() == ["JOB", "NAME", "OWNER", "STATE", "TRY", "STEP", "SINCE", "WHY"]
    assert one.split() == ["1", "one", "ada", "running", "1", "10/100", "1m30s"]
    assert "failed" in two
    assert r"[bold]why[/bold] \x1b[2J" in two


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (80, "JOB NAME OWNER STATE TRY STEP SINCE WHY"),
        (60, "JOB NAME OWNER STATE WHY"),
        (40, "JOB STATE WHY"),
    ],
)
def test_a_narrow_screen_keeps_the_id_and_the_state(width: int, columns: str) -> None:
    console = paper(width)
    rows = [
        a_job("10429", "experiment-alpha-1429"),
        {**a_job("10430", "beta"), "state": "queued", "why": "waits for 1 GPU"},
    ]
    print_jobs(cast("list[JobSummary]", rows), NOW, console)
    head, *lines = written(console).splitlines()
    assert head.split() == columns.split()
    assert all(len(line) <= width for line in lines)
    assert [line.split()[0] for line in lines if line.startswith("104")] == ["10429", "10430"]
    assert "waits for 1 GPU" in " ".join(" ".join(lines).split())


def test_the_page_of_a_job_tells_its_attempts_with_cause_verdict_and_checkpoints() -> None:
    console = paper(160)
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
    print_job(cast("JobDetail", job), NOW, console)
    text = written(console)
    assert "cd" * 32 in text
    assert "/state/jobs/000001" in text
    assert "(1m30s ago)" in text
    killed = next(line for line in text.splitlines() if "137" in line)
    assert killed.split() == [
        "1",
        "1",
        "1m00s",
        "137",
        "killed",
        "-",
        "50",
        *["killed:", "resuming", "from", "step", "50"],
    ]


def test_a_job_without_attempts_has_no_table_of_them() -> None:
    console = paper()
    print_job(cast("JobDetail", {**a_job(), "attempts": []}), NOW, console)
    assert "CAUSE" not in written(console)


def test_the_live_line_moves_and_what_stays_stands_above_it() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    preparing = cast("JobDetail", {**a_job(), "state": "preparing"})
    queued = cast("JobDetail", {**a_job(), "state": "queued", "why": "waits for 1 GPU"})
    with LiveView(console) as view:
        view.build("Step 3/9 : RUN [x]\x1b[2J")
        view.look(preparing, None)
        view._progress.refresh()
        assert r"building the image: Step 3/9 : RUN [x]\x1b[2J" in written(console)
        view.look(queued, None)
        view._progress.refresh()
        assert "train: queued: waits for 1 GPU" in written(console)
        view.look(cast("JobDetail", a_job()), 70.0)
        view._progress.refresh()
        view.say("attempt 1 ended [x]")
    assert "step 10/100  5.1k items/s  loss 2.5000  eta 1m10s" in written(console)
    assert "attempt 1 ended [x]\n" in written(console).replace("\r", "")
