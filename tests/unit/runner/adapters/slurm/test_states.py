"""Meaning of Slurm's words for an attempt; the rows are answers of squeue and sacct of Slurm 22.05."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from signal import SIGKILL, SIGTERM

import pytest

from runner.adapters.slurm.states import (
    REASONS,
    WAITING,
    Claim,
    Missing,
    Row,
    SlurmEvidence,
    StartedTwice,
    describe_wait,
    estimate,
    judge,
    left_alone,
    may_have_failed_to_start,
    parse_accounting,
    parse_drained,
    parse_rows,
    was_cancelled_by_person,
)
from runner.core.ports.executor import Alive, EndReason, Gone, Key, Waiting

KEY = Key("abc", "7", 1)
NOW = datetime(2026, 11, 23, 16, 0, tzinfo=UTC)
NAME = "runner-abc-7-1"
CAPTURED = """\
5|mark|CANCELLED|JobHeldUser|n/a|0|2026-11-23T16:16:38|0|sbatch|/x/.slurm-out|
3|mark|COMPLETING|None|node3|0|2026-11-23T16:16:36|0|sbatch|/x/.slurm-out|
1|mark|FAILED|NonZeroExitCode|node1|0|2026-11-23T16:16:36|1792|a b c|/x|y|
2|mark|FAILED|JobLaunchFailure|node2|0|2026-11-23T16:16:36|9|sbatch|/x/.slurm-out|
4|mark|PENDING|BeginTime|n/a|0|2026-11-23T17:16:36|0|sbatch|/x/.slurm-out|
"""
CLAIM = Claim("12", "node1", ("0", "1"))
BEGUN = SlurmEvidence(CLAIM)


def row(state: str, status: int = 0, reason: str = "None") -> Row:
    return Row("12", state, reason, "node1", 1001, "2026-11-23T17:00:00", status, NAME)


def gone(state: str, seen: SlurmEvidence = BEGUN, status: int = 0, reason: str = "None") -> Gone:
    verdict = judge(KEY, row(state, status, reason), seen, NOW)
    assert isinstance(verdict, Gone)
    return verdict


def test_an_answer_of_squeue_is_read_whatever_a_job_is_called() -> None:
    rows = {each.number: each for each in parse_rows(CAPTURED, "mark")}
    assert list(rows) == ["5", "3", "1", "2", "4"]
    assert (rows["1"].name, rows["1"].status, rows["1"].ended) == ("a b c", 1792, True)
    assert rows["1"].output == "/x|y"
    assert (rows["3"].ended, rows["3"].waits, rows["4"].waits) == (False, False, True)
    assert (
        parse_rows("slurm_load_jobs error: x\n1|2|3\n7|mark|RUNNING|None|n|no uid|N/A|0|a|/x|\n", "mark")
        == []
    )


def test_a_name_of_several_lines_is_no_row_of_another_job() -> None:
    name = "x\u2028y\n7|RUNNING|None|node1|0|N/A|0|forged|/x|\n\n"
    text = f"5|mark|PENDING|None|n/a|0|N/A|0|{name}|/a\nb|\n6|mark|FAILED|None|n|0|N/A|1:9|z|/z|\n"
    first, second = parse_rows(text, "mark")
    assert (first.number, first.name, second.number, second.status) == ("5", "x\u2028y\n7", "6", 256 + 9)


@pytest.mark.parametrize("state", ["EXPEDITING", "POWER_UP_NODE", "UPDATE_DB", "SOMETHING_OF_SLURM_27"])
def test_a_state_that_nobody_knows_ends_no_attempt(state: str) -> None:
    assert isinstance(judge(KEY, row(state), BEGUN, NOW), Alive)
    assert isinstance(judge(KEY, row(state), SlurmEvidence(), NOW), Waiting)


@pytest.mark.parametrize("state", sorted(WAITING))
def test_what_slurm_has_not_begun_waits_with_a_reason_and_an_estimate(state: str) -> None:
    assert judge(KEY, row(state, reason="Priority"), SlurmEvidence(), NOW) == Waiting(
        KEY,
        "Slurm: jobs with a higher priority go first (Priority)",
        datetime(2026, 11, 23, 17, tzinfo=UTC),
    )


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"])
def test_what_runs_is_alive_where_its_claim_says(state: str) -> None:
    seen = judge(KEY, row(state), BEGUN, NOW)
    assert isinstance(seen, Alive)
    assert (seen.host, seen.devices, seen.suspended) == ("node1", ("gpu:0", "gpu:1"), False)


@pytest.mark.parametrize("state", ["SUSPENDED", "STOPPED"])
def test_what_slurm_has_suspended_is_alive(state: str) -> None:
    seen = judge(KEY, row(state), BEGUN, NOW)
    assert isinstance(seen, Alive)
    assert seen.suspended


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
def test_the_exit_status_that_the_script_has_written_counts(state: str) -> None:
    assert gone(state, replace(BEGUN, exit_code=7, exited_at=NOW), 256) == Gone(KEY, 7, at=NOW)


def test_a_zero_that_only_slurm_knows_is_not_believed() -> None:
    assert judge(KEY, row("COMPLETED"), BEGUN, NOW) == Missing()
    assert judge(KEY, row("FAILED"), BEGUN, NOW) == Missing()


@pytest.mark.parametrize(("status", "code"), [(9, 137), (15, 143), (1792, 7), (139, 139)])
def test_another_code_of_slurm_is_believed_where_the_script_has_left_none(status: int, code: int) -> None:
    assert gone("FAILED", status=status).exit_code == code


def test_a_kill_of_ours_is_a_kill_whatever_slurm_calls_it() -> None:
    killed = replace(BEGUN, killed=True)
    assert (gone("CANCELLED", killed).exit_code, gone("CANCELLED", killed).reason) == (128 + SIGKILL, None)
    assert gone("FAILED", killed).exit_code == 128 + SIGKILL


def test_memory_is_slurms_word_and_the_code_is_the_programs() -> None:
    survived = gone("OUT_OF_MEMORY", replace(BEGUN, exit_code=1), 125)
    assert (survived.exit_code, survived.oom_seen) == (1, True)
    assert (gone("OUT_OF_MEMORY", status=125).exit_code, gone("OUT_OF_MEMORY").oom_seen) == (137, True)


@pytest.mark.parametrize("state", sorted(REASONS))
def test_an_end_by_slurm_has_its_reason_and_what_the_program_has_left(state: str) -> None:
    saved = gone(state, replace(BEGUN, exit_code=75))
    assert (saved.exit_code, saved.reason, saved.never_started) == (75, REASONS[state], False)
    lost = gone(state)
    assert (lost.exit_code, lost.reason) == (None, REASONS[state])
    assert "job 12" in lost.error
    assert "node1" in lost.error


def test_what_never_began_and_was_ended_by_slurm_never_started() -> None:
    assert gone("CANCELLED", SlurmEvidence()).never_started
    assert gone("BOOT_FAIL", SlurmEvidence()).never_started


def test_what_we_took_out_of_the_queue_ended_as_we_asked() -> None:
    asked = SlurmEvidence(cancelled=SIGTERM)
    assert gone("CANCELLED", asked) == Gone(KEY, 143, never_started=True)
    assert judge(KEY, None, asked, NOW) == Gone(KEY, 143, never_started=True)
    assert gone("CANCELLED", replace(asked, claim=CLAIM, exit_code=75)).reason is None


@pytest.mark.parametrize("seen", [BEGUN, replace(BEGUN, exit_code=1)])
def test_a_job_that_waits_after_it_has_begun_was_started_twice(seen: SlurmEvidence) -> None:
    assert judge(KEY, row("PENDING"), seen, NOW) == StartedTwice()


@pytest.mark.parametrize("known", [row("CANCELLED"), None])
def test_a_second_start_that_we_have_cancelled_is_no_cancellation_of_somebody(known: Row | None) -> None:
    said = judge(KEY, known, replace(BEGUN, restarted=True), NOW)
    assert isinstance(said, Gone)
    assert (said.exit_code, said.reason) == (None, EndReason.STARTED_TWICE)


def test_a_second_start_that_found_the_claim_is_no_exit_of_the_program() -> None:
    twice = gone("FAILED", status=79 << 8)
    assert (twice.exit_code, twice.reason) == (None, EndReason.STARTED_TWICE)
    assert gone("FAILED", replace(BEGUN, exit_code=79), 79 << 8).reason is None


def test_a_job_that_could_not_be_started_says_why() -> None:
    said = gone("FAILED", SlurmEvidence(), reason="JobLaunchFailure")
    assert said.never_started
    assert said.error == "job 12 ended in Slurm as FAILED (JobLaunchFailure) on node1"


def test_what_the_shell_has_said_explains_a_program_that_was_not_found() -> None:
    seen = replace(BEGUN, exit_code=127, said="sh: 1: pyton: not found")
    assert gone("FAILED", seen, 127 << 8).error == "sh: 1: pyton: not found"


def test_what_slurm_has_forgotten_has_the_exit_that_its_script_has_left() -> None:
    assert judge(KEY, None, replace(BEGUN, exit_code=3), NOW) == Gone(KEY, 3)
    assert judge(KEY, None, replace(BEGUN, killed=True), NOW) == Gone(KEY, 137)
    assert judge(KEY, None, BEGUN, NOW) == Missing()
    assert judge(KEY, None, SlurmEvidence(), NOW) == Missing()


def test_slurm_is_not_asked_about_a_success() -> None:
    assert left_alone(KEY, replace(BEGUN, exit_code=0)) == Gone(KEY, 0)
    assert left_alone(KEY, replace(BEGUN, exit_code=75)) is None  # it may have been preempted
    assert left_alone(KEY, BEGUN) is None


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
def test_what_its_node_has_not_started_still_waits(state: str) -> None:
    assert judge(KEY, row(state), SlurmEvidence(), NOW) == Waiting(KEY, "Slurm: node1 is about to start it")


def test_a_node_that_does_not_finish_cleaning_up_keeps_no_attempt_alive() -> None:
    ended = replace(BEGUN, exit_code=75, exited_at=NOW)
    assert isinstance(judge(KEY, row("COMPLETING"), ended, NOW), Alive)
    assert judge(KEY, row("COMPLETING"), ended, NOW + timedelta(minutes=2)) == Gone(KEY, 75, at=NOW)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "waits for free resources (Resources)"),
        ("None", "Slurm is about to look at it"),
        ("QOSMaxJobsPerUserLimit", "a limit of its QOS or account is reached (QOSMaxJobsPerUserLimit)"),
        ("AssocGrpGRES", "a limit of its QOS or account is reached (AssocGrpGRES)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:node[1-2]",
            "the nodes that it asks for are down, drained or reserved (ReqNodeNotAvail)",
        ),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_a_reason_of_slurm_is_told_in_words(reason: str, words: str) -> None:
    assert describe_wait(reason) == words


@pytest.mark.parametrize("starts", ["N/A", "", "2027-11-23T16:00:00", "2026-11-23T15:00:00"])
def test_a_year_or_the_past_is_no_estimate(starts: str) -> None:
    assert estimate(starts, NOW) is None


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        ("12|FAILED|75:0|1001", 75 << 8, ""),
        ("12|OUT_OF_MEMORY|0:125|1001", 125, ""),
        ("12|CANCELLED by 1002|0:15|1001", 15, "by 1002"),
        ("12|NODE_FAIL|1:0|1001", 256, ""),
        ("12|FAILED|Unknown|1001", 0, ""),
        ("12|FAILED||1001", 0, ""),
    ],
)
def test_the_accounting_knows_what_slurmctld_has_forgotten(line: str, status: int, reason: str) -> None:
    found = parse_accounting(f"11|COMPLETED|0:0|1001\n{line}\n", "12", "node1", NAME)
    assert found is not None
    assert (found.status, found.reason, found.uid) == (status, reason, 1001)
    assert parse_accounting("", "12", "node1", NAME) is None


def test_who_cancelled_a_job_is_told_where_the_accounting_says_it() -> None:
    found = parse_accounting("12|CANCELLED by 1002|0:15|1001\n", "12", "node1", NAME)
    said = judge(KEY, found, BEGUN, NOW)
    assert isinstance(said, Gone)
    assert said.error == "job 12 was cancelled in Slurm on node1 by uid 1002"


@pytest.mark.parametrize(
    ("state", "is_person"),
    [
        ("CANCELLED by 1002", True),
        ("CANCELLED by 0", False),
        ("CANCELLED by 64", False),
        ("CANCELLED", False),
    ],
)
def test_slurm_itself_is_no_person_who_cancels(state: str, *, is_person: bool) -> None:
    found = parse_accounting(f"12|{state}|0:15|1001\n", "12", "", NAME)
    assert was_cancelled_by_person(found) is is_person
    assert not was_cancelled_by_person(None)


@pytest.mark.parametrize(
    ("found", "seen", "may"),
    [
        (row("CANCELLED"), SlurmEvidence(), True),
        (row("CANCELLED"), BEGUN, False),
        (row("CANCELLED"), SlurmEvidence(exit_code=75), False),
        (row("CANCELLED"), SlurmEvidence(killed=True), False),
        (row("CANCELLED"), SlurmEvidence(cancelled=SIGTERM), False),
        (replace(row("CANCELLED"), node="n/a"), SlurmEvidence(), False),
        (row("TIMEOUT"), SlurmEvidence(), False),
    ],
)
def test_only_a_job_that_had_a_node_and_never_ran_may_be_cancelled_by_slurm(
    found: Row, seen: SlurmEvidence, *, may: bool
) -> None:
    assert may_have_failed_to_start(found, seen) is may


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("2026-11-23T17:00:01|Duplicate jobid\n", "Duplicate jobid"),
        ("2026-11-23T16:59:59|Duplicate jobid\n", None),  # before the job was given to the node
        ("2026-11-23T17:00:01|a new disk\n", None),  # by a person, who may have cancelled the job, too
        ("Unknown|none\n", None),
        ("", None),
    ],
)
def test_a_node_that_was_drained_for_a_job_that_it_could_not_start(said: str, why: str | None) -> None:
    assert parse_drained(said, row("CANCELLED")) == why
