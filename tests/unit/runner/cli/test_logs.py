import json
from typing import NoReturn

import pytest

from tests.fakes.daemon.api import FakeApi, Vanish, an_attempt, ended
from tests.unit.runner.cli.conftest import Invoke

TEXT = b"".join(b"line %d \xff\x1b[1m\n" % number for number in range(100))


def vanish() -> None:
    raise Vanish


def test_a_log_is_printed_byte_for_byte(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train")
    api.logs[job["id"], 1] = TEXT
    assert invoke("logs", "train").stdout_bytes == TEXT


def test_the_log_of_one_attempt_can_be_asked_for(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train", attempts=[an_attempt(1, ended_at="x"), an_attempt(2)])
    api.logs.update({(job["id"], 1): b"first\n", (job["id"], 2): b"second\n"})
    assert invoke("logs", "train", "--attempt", "1").stdout == "first\n"
    assert invoke("logs", "train").stdout == "second\n"
    assert invoke("logs", "train", "--tail", "all").stdout == "second\n"


def test_the_build_log_is_another_one(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train")
    api.builds[job["id"]] = b"Step 1\n"
    assert invoke("logs", "train", "--build").stdout == "Step 1\n"
    assert invoke("logs", "train", "--build", "-f").stdout == "Step 1\n"
    assert invoke("logs", "train", "--build", "--attempt", "1").exit_code == 2


def test_what_the_quota_cut_out_is_told_beside_the_bytes_and_not_among_them(
    api: FakeApi, invoke: Invoke
) -> None:
    job = api.add("train")
    api.logs[job["id"], 1] = TEXT
    api.cuts[job["id"], 1] = (100, 900)
    result = invoke("logs", "train")
    assert result.stdout_bytes == TEXT[:100] + TEXT[900:]
    assert result.stderr == "--- 800 B of the log were cut out here by its quota ---\n"


def test_following_has_no_gap_and_no_duplicate_although_the_daemon_is_killed(
    api: FakeApi, invoke: Invoke
) -> None:
    job = api.add("train")
    key, last = (job["id"], 1), an_attempt(1, ended_at="x")

    def write(end: int) -> None:
        api.logs[key] = TEXT[:end]

    api.happen(
        "log",
        lambda: write(100),
        vanish,
        lambda: write(150),
        vanish,
        vanish,
        lambda: write(1000),
        *[lambda: None] * 20,
        lambda: write(len(TEXT)),
        {**ended(), "attempts": [last]},
    )
    result = invoke("logs", "-f", "train")
    assert result.stdout_bytes == TEXT
    assert result.exit_code == 0


def test_following_goes_on_with_the_next_attempt_until_the_job_ends(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train", attempts=[], state="queued", attempt=0)
    one, two = an_attempt(1), an_attempt(2)
    gone = {"ended_at": "x"}
    api.logs.update({(job["id"], 1): b"first\n", (job["id"], 2): b"second\n"})
    api.happen(
        "log",
        lambda: None,
        {"state": "running", "attempts": [one]},
        lambda: None,
        {"state": "queued", "attempts": [{**one, **gone}]},
        lambda: None,
        lambda: None,
        {"state": "running", "attempts": [{**one, **gone}, two]},
        lambda: None,
        lambda: None,
        {**ended("failed", "exception: no"), "attempts": [{**one, **gone}, {**two, **gone}]},
    )
    result = invoke("logs", "-f", "train")
    assert result.stdout == "first\nsecond\n"
    assert result.stderr == "--- train: attempt 2 ---\ntrain: failed: exception: no\n"
    assert result.exit_code == 0


@pytest.mark.parametrize("state", ["queued", "preparing"])
def test_an_empty_log_of_a_job_that_has_not_started_is_explained(
    api: FakeApi, invoke: Invoke, state: str
) -> None:
    job = api.add("train", attempts=[], state=state, attempt=0, why="waits for a GPU")
    api.whys[job["id"]] = {"job": job["id"], "name": "train", "state": state, "why": "waits for a GPU"}
    result = invoke("logs", "train")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"train: has not started: waits for a GPU; runner cancel {job['id']} ends it\n"


def test_an_empty_log_of_a_job_that_never_started_is_explained(api: FakeApi, invoke: Invoke) -> None:
    api.add("train", attempts=[], attempt=0, **ended("cancelled"))
    result = invoke("logs", "train")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == (
        "train: no attempt was started, so nothing was written; runner show train says why\n"
    )


def test_the_next_attempt_that_has_not_begun_is_an_error_and_not_an_empty_log(
    api: FakeApi, invoke: Invoke
) -> None:
    job = api.add("train", attempts=[an_attempt(1)])
    api.logs[job["id"], 1], api.logs[job["id"], 2] = b"first\n", b""
    result = invoke("logs", "train", "--attempt", "2")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "train: there is no attempt 2 yet; there are 1\n"


@pytest.mark.parametrize("options", [(), ("--attempt", "1"), ("--attempt", "1", "--follow"), ("--json",)])
def test_an_empty_log_of_an_attempt_that_never_started_is_explained(
    api: FakeApi, invoke: Invoke, options: tuple[str, ...]
) -> None:
    failed = an_attempt(1, launched_at=None, ended_at="x", cause="launch_failed", message="no such data")
    api.add("train", attempts=[failed], **ended("failed", "launch_failed: no such data"))
    result = invoke("logs", "train", *options)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == ("train: attempt 1 was never started, so nothing was written: no such data\n")


@pytest.mark.parametrize(
    "facts",
    [{}, {"ended_at": "x"}, {"launched_at": None}, {"launched_at": None, "ended_at": "x", "exit_code": 0}],
)
def test_an_attempt_that_has_started_or_may_yet_start_can_be_silent(
    api: FakeApi, invoke: Invoke, facts: dict[str, str | int | None]
) -> None:
    api.add("train", attempts=[an_attempt(1, **facts)])
    result = invoke("logs", "train")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("state", ["queued", "preparing"])
def test_what_a_job_that_has_not_started_waits_for_is_said_once_on_stderr(
    api: FakeApi, invoke: Invoke, state: str
) -> None:
    job = api.add("train", attempts=[], state=state, attempt=0, why="")
    api.logs[job["id"], 1] = b"first\n"
    whys = ["", "waits for a GPU, until about 17:05", "waits for a GPU, until about 17:06", "never: no"]
    waiting = {"job": job["id"], "name": "train", "state": state}
    says = [lambda why=why: api.whys.update({job["id"]: {**waiting, "why": why}}) for why in whys]
    ends = {**ended(), "attempts": [an_attempt(1, ended_at="x")]}
    api.happen("log", *says, lambda: None, {"state": "running", "attempts": [an_attempt(1)]}, ends)
    result = invoke("logs", "-f", "train")
    assert (result.exit_code, result.stdout) == (0, "first\n")
    assert result.stderr.splitlines() == [
        f"train: has not started: {why}; runner cancel {job['id']} ends it" for why in (whys[1], whys[3])
    ]


def test_what_a_job_waits_for_between_two_attempts_is_said_once_on_stderr(
    api: FakeApi, invoke: Invoke
) -> None:
    one, two = an_attempt(1, ended_at="x"), an_attempt(2, ended_at="x")
    job = api.add("train", attempts=[one], state="queued")
    api.logs.update({(job["id"], 1): b"first\n", (job["id"], 2): b"second\n"})
    why = "after a pause; not before 17:05:10"
    api.whys[job["id"]] = {"job": job["id"], "name": "train", "state": "queued", "why": why}
    runs = {"state": "running", "attempts": [one, {**two, "ended_at": None}]}
    api.happen("log", *[lambda: None] * 5, runs, lambda: None, {**ended(), "attempts": [one, two]})
    result = invoke("logs", "-f", "train")
    assert (result.exit_code, result.stdout) == (0, "first\nsecond\n")
    assert result.stderr.splitlines() == [
        f"train: attempt 1 has ended, the next has not begun: {why}; runner cancel {job['id']} ends it",
        "--- train: attempt 2 ---",
    ]


def test_the_next_attempt_is_waited_for_and_not_asked_for_all_the_time(api: FakeApi, invoke: Invoke) -> None:
    one = an_attempt(1, ended_at="x")
    job = api.add("train", attempts=[one], state="queued")
    api.logs[job["id"], 1] = b"first\n"
    api.happen("log", *[lambda: None] * 5, {**ended(), "attempts": [one]})
    assert invoke("logs", "-f", "train").stdout == "first\n"
    asked = [path for _, path, _ in api.asked]
    polls = [number for number, path in enumerate(asked) if "/log?" in path][2:-1]
    assert polls
    assert all("/wait?" in asked[number + 1] for number in polls)


def test_following_ends_when_a_person_is_needed_and_says_so(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train", attempts=[an_attempt(1, ended_at="x")], state="held")
    api.logs[job["id"], 1] = b"first\n"
    result = invoke("logs", "-f", "train")
    assert (result.exit_code, result.stdout) == (0, "first\n")
    held = "train: is held; runner release train lets it go on, and runner policy explain says why\n"
    assert result.stderr == held
    assert invoke("logs", "train").stderr == ""


def test_following_a_chosen_attempt_ends_with_it(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train", attempts=[an_attempt(1, ended_at="x"), an_attempt(2)])
    api.logs[job["id"], 1] = b"first\n"
    assert invoke("logs", "-f", "--attempt", "1", "train").stdout == "first\n"


def test_bytes_written_while_the_end_was_noticed_are_not_lost(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train", **ended(), attempts=[an_attempt(1, ended_at="x")])

    def last_words() -> None:
        api.logs[job["id"], 1] = b"late\n"

    api.happen("log", lambda: None, last_words)
    assert invoke("logs", "-f", "train").stdout == "late\n"


def test_a_log_as_json_has_whole_lines_with_attempt_and_offset(api: FakeApi, invoke: Invoke) -> None:
    """Pieces of the log end anywhere, at a border of 1 MiB in the middle of a character."""
    job = api.add("train")
    lines = ["grün " * 20 + "\n", "kurz\n", "  0%\r 50%\r100%\n", "ohne Ende ß"]
    api.logs[job["id"], 1] = "".join(lines).encode()
    told = [json.loads(line) for line in invoke("logs", "--json", "train").stdout.splitlines()]
    assert "".join(each["text"] for each in told) == "".join([*lines[:2], "100%\n", lines[3]])
    starts = [len("".join(lines[:count]).encode()) for count in range(4)]
    assert {(each["attempt"], each["cut"]) for each in told} == {(1, None)}
    assert [each["offset"] for each in told] == [0, starts[2], starts[3]]


BAR = b"start\n" + b"".join(b"\r%3d%%|bar" % (n // 10) for n in range(1001)) + b"\r\n"


def test_of_a_progress_bar_the_last_state_is_printed(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train", **ended(), attempts=[an_attempt(1, ended_at="x")])
    api.logs[job["id"], 1] = BAR + b"\r  7%|next"
    shown = b"start\n100%|bar\n  7%|next"
    assert invoke("logs", "train").stdout_bytes == shown
    assert invoke("logs", "-f", "train").stdout_bytes.replace(b"\r", b"") == shown
    assert invoke("logs", "--tail", "2", "train").stdout_bytes == b"100%|bar\n  7%|next"
    assert invoke("logs", "--raw", "train").stdout_bytes == BAR + b"\r  7%|next"


def test_a_bar_that_is_followed_is_drawn_on_and_not_once_more(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train")
    key = (job["id"], 1)
    api.logs[key] = b"\r 10%"

    def more(text: bytes) -> None:
        api.logs[key] += text

    gone = {**ended(), "attempts": [an_attempt(1, ended_at="x")]}
    api.happen("log", *[lambda: None] * 2, lambda: more(b"\r 20%\r 30%"), *[lambda: None] * 2)
    api.happen("log", lambda: more(b"\r100%\ndone\n"), gone)
    assert invoke("logs", "-f", "train").stdout_bytes == b" 10%\r 30%\r100%\ndone\n"


def test_the_lines_of_several_jobs_follow_their_names(api: FakeApi, invoke: Invoke) -> None:
    first, second = api.add("a"), api.add("longer", state="held")
    api.logs.update({(first["id"], 1): b"one\ntwo", (second["id"], 1): b"three\n"})
    shown = "a      | one\na      | two\nlonger | three\n"
    assert invoke("logs", "a", "longer").stdout == shown
    api.jobs[first["id"]].update(**ended(), attempts=[an_attempt(1, ended_at="x")])
    api.jobs[second["id"]].update(attempts=[an_attempt(1, ended_at="x")])
    followed = invoke("logs", "-f", "a", "longer", "a")
    assert sorted(followed.stdout.splitlines()) == sorted(shown.splitlines())
    told = [json.loads(line) for line in invoke("logs", "--json", "a", "longer").stdout.splitlines()]
    assert {each["job"]: each["text"] for each in told} == {first["id"]: "two", second["id"]: "three\n"}


def test_several_jobs_of_one_name_are_told_apart_by_their_ids(api: FakeApi, invoke: Invoke) -> None:
    first, second = api.add("a"), api.add("a")
    api.logs.update({(first["id"], 1): b"one\n", (second["id"], 1): b"two\n"})
    shown = invoke("logs", first["id"], second["id"]).stdout
    assert shown == f"{first['id']} | one\n{second['id']} | two\n"


def test_the_logs_of_a_matrix_are_asked_for_by_its_name(api: FakeApi, invoke: Invoke) -> None:
    for number in (1, 2):
        job = api.add(f"lr-{number}")
        api.logs[job["id"], 1] = b"step %d\n" % number
    assert (
        invoke("logs", "lr").stdout
        == invoke("logs", "--sweep", "lr").stdout
        == "lr-1 | step 1\nlr-2 | step 2\n"
    )
    assert invoke("logs", "--raw", "lr").exit_code == 2


@pytest.mark.parametrize(
    "args",
    [
        ("logs",),
        ("logs", "--attempt", "0", "train"),
        ("logs", "a", "--sweep", "b"),
        ("logs", "--raw", "--json", "a"),
    ],
)
def test_wrong_arguments_exit_2_and_start_no_daemon(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    def none(_tell: object) -> NoReturn:
        raise AssertionError("a daemon was looked for")

    monkeypatch.setattr("runner.cli.choice.find_or_start", none)
    assert invoke(*args).exit_code == 2
