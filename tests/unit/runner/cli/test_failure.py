"""The end of a failed job on the screen: its last lines, and the next step."""

import pytest

from tests.fakes.daemon.api import AT, FakeApi, Problem, an_attempt, ended
from tests.unit.runner.cli.conftest import Invoke

LOG = b"".join(b"line %d\n" % number for number in range(100)) + b"  0%\r 50%\r\x1b[1mNameError:\tx\n"
PROGRAM = {"job": {"workload": {"kind": "program"}}}


def fail(api: FakeApi, cause: str = "exception", message: str = "exit code 1", **facts: object) -> None:
    attempt = an_attempt(1, ended_at=AT, exit_code=1, cause=cause, message=message)
    job = api.add("train", **{**ended("failed", f"{cause}: {message}"), "attempts": [attempt], **facts})
    api.logs[job["id"], 1] = LOG


@pytest.mark.parametrize("command", ["wait", "show"])
def test_the_last_lines_and_the_next_step_follow_on_stderr(
    api: FakeApi, invoke: Invoke, command: str
) -> None:
    fail(api)
    result = invoke(command, "train")
    first, *lines, last, step = result.stderr.splitlines()
    assert (first, last) == ("--- the last lines of attempt 1 ---", "---")
    assert lines == [*(f"line {number}" for number in range(81, 100)), "\\x1b[1mNameError:\tx"]
    assert step == "train: runner logs 000001 prints the whole log, runner restart 000001 tries again"
    assert "tail=20" in next(path for _, path, _ in api.asked if "/log" in path)
    assert "line" not in result.stdout


@pytest.mark.parametrize("facts", [ended(), ended("cancelled"), {"state": "held"}, {"state": "running"}])
def test_of_a_job_that_has_not_failed_nothing_is_told(
    api: FakeApi, invoke: Invoke, facts: dict[str, object]
) -> None:
    api.add("train", **facts)
    assert invoke("show", "train").stderr == ""


@pytest.mark.parametrize(
    ("cause", "message", "step"),
    [
        ("not_found", "the program was not found", "check the first word of the command"),
        ("host_oom", "killed", "raise resources.memory"),
        ("usage_error", "the program refuses its arguments", "correct the arguments, and submit it again"),
        (
            "not_found",
            "exit code 2: the script or module is not in the code of the job",
            "check the path of the script",
        ),
        (
            "exception",
            "exit code 1: ModuleNotFoundError: No module named 'x'",
            "add the package to the image",
        ),
        ("exception", "exit code 1: SyntaxError: '(' was never closed", "correct the code"),
        ("terminated", "time limit of 2h is used", "runner set 000001 --time TIME raises its time limit"),
    ],
)
def test_the_next_step_follows_from_the_cause(
    api: FakeApi, invoke: Invoke, cause: str, message: str, step: str
) -> None:
    fail(api, cause, message)
    assert invoke("wait", "train").stderr.splitlines()[-1].startswith(f"train: {step}")


@pytest.mark.parametrize(
    ("saved", "begins"),
    [
        ({"saved_step": 40}, "continues from the newest checkpoint"),
        ({"saved_step": None, "saved_version": 3}, "continues from the newest checkpoint"),
        ({"saved_step": None}, "begins again: no checkpoint of it is known"),
    ],
)
def test_after_a_time_limit_a_checkpoint_is_promised_where_there_is_one(
    api: FakeApi, invoke: Invoke, saved: dict[str, object], begins: str
) -> None:
    fail(api, "terminated", "time limit of 1m reached", **saved)
    assert invoke("show", "train").stderr.splitlines()[-1] == (
        f"train: runner set 000001 --time TIME raises its time limit; then runner restart 000001 {begins}"
    )


@pytest.mark.parametrize(
    ("number", "args", "saved", "word"),
    [
        (2, ["--resume", "{newest}"], 40, "correct checkpoint.resume_args"),
        (1, ["--resume", "{newest}"], 40, "submit it again"),  # the first attempt has none
        (2, [], 40, "submit it again"),
        (2, ["--resume", "{newest}"], None, "submit it again"),  # as after restart --from scratch
    ],
)
def test_refused_arguments_of_a_resumed_attempt_cost_no_work(  # noqa: PLR0913, PLR0917
    api: FakeApi, invoke: Invoke, number: int, args: list[str], saved: int | None, word: str
) -> None:
    last = an_attempt(number, ended_at=AT, exit_code=2, cause="usage_error", message="refused")
    revision = {"job": {"workload": {"kind": "program"}, "checkpoint": {"resume_args": args}}}
    fail(api, attempts=[last], revision=revision, saved_step=saved)
    step = invoke("show", "train").stderr.splitlines()[-1]
    assert word in step
    kept = "runner apply FILE --job 000001 --file-only, runner restart 000001"
    assert ("submit it again" in step) != (kept in step)


def test_a_held_job_names_who_lets_it_go_on(api: FakeApi, invoke: Invoke) -> None:
    fail(api, state="held", outcome=None)
    assert invoke("wait", "train").stderr.splitlines()[-1].endswith("runner release 000001 lets it go on")


def test_of_a_job_that_a_person_holds_nothing_is_told(api: FakeApi, invoke: Invoke) -> None:
    fail(api, state="held", outcome=None, why="held by ann")
    assert invoke("show", "train").stderr == ""


def test_a_job_that_never_started_has_no_lines(api: FakeApi, invoke: Invoke) -> None:
    api.add("train", **ended("failed", "the image cannot be built"), attempts=[])
    assert invoke("show", "train").stderr.startswith("train: runner logs --build 000001 ")


def test_the_log_of_somebody_else_is_left_out(api: FakeApi, invoke: Invoke) -> None:
    def refused() -> None:
        raise Problem(403, "refused", 3, "job 1: belongs to ada")

    fail(api)
    api.turns["log"].append(refused)
    assert len(invoke("show", "train").stderr.splitlines()) == 1


def test_as_json_nothing_is_told_beside_the_object(api: FakeApi, invoke: Invoke) -> None:
    fail(api)
    assert invoke("show", "--json", "train").stderr == ""
    assert invoke("wait", "--json", "train").stderr == ""


def test_who_follows_a_program_sees_its_output_once(api: FakeApi, invoke: Invoke, job_file: object) -> None:
    attempt = an_attempt(1, ended_at="x", exit_code=1, cause="exception", message="exit code 1")
    api.logs["000001", 1] = b"hello\n"
    api.turns["wait"].append(
        lambda: api.jobs["000001"].update({**ended("failed"), "attempts": [attempt], "revision": PROGRAM})
    )
    result = invoke("submit", "--follow", str(job_file))
    assert (result.exit_code, result.stdout.count("hello")) == (10, 1)
    assert (
        result.stderr == "train: runner logs 000001 prints the whole log, runner restart 000001 tries again\n"
    )


# --- logs --tail and --since


def test_a_tail_is_asked_for_once_and_the_log_is_read_on_from_there(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train")
    api.logs[job["id"], 1] = b"step 1\n"
    assert invoke("logs", "--tail", "5", "train").stdout == "step 1\n"
    asked = [path for _, path, _ in api.asked if "/log" in path]
    assert ["tail=5" in path for path in asked] == [True, False]


def test_a_time_is_sent_as_unix_time(api: FakeApi, invoke: Invoke) -> None:
    api.add("train")
    invoke("logs", "--since", "2026-03-01T12:00:00+00:00", "train")
    assert any("since=1772366400.0" in path for _, path, _ in api.asked)
    invoke("logs", "--since", "10m", "train")
    assert sum("since=" in path for _, path, _ in api.asked) == 2


@pytest.mark.parametrize(
    ("args", "fact"),
    [
        (("--since", "10"), "has no unit"),
        (("--since", "2026-13-01"), "is not a time"),
        (("--since", "2026-03-01T27:00:00"), "is not a time"),
        (("--tail", "-1"), "-1 is less than 0"),
        (("--tail", "3", "--build"), "--build goes with none of"),
    ],
)
def test_a_wrong_beginning_is_one_line(
    api: FakeApi, invoke: Invoke, args: tuple[str, ...], fact: str
) -> None:
    api.add("train")
    result = invoke("logs", *args, "train")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert fact in result.stderr
