import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from runner.base.errors import Unavailable
from runner.client import autostart
from runner.client import client as client_module
from runner.client.autostart import Endpoint, NoDaemon
from runner.client.client import (
    Client,
    ConnectionLost,
    InterruptedRequest,
    NoAnswer,
    find,
    job_names,
    parse_log_chunk,
)
from runner.client.http import ErrorResponse, Response
from runner.client.http import exchange as exchange_once
from tests.fakes.daemon.api import FakeApi, Problem, Vanish, ended


def vanish() -> None:
    raise Vanish


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    monkeypatch.setenv("RUNNER_SOCKET", str(tmp_path / "runner.sock"))
    with FakeApi(tmp_path / "runner.sock") as api:
        yield api


def client_of(api: FakeApi) -> Client:
    return Client(Endpoint(str(api.socket_path), None))


def test_every_question_reaches_its_route_and_comes_back_as_values(api: FakeApi) -> None:
    job = api.add("train")
    api.logs[job["id"], 1] = b"hello\n"
    client = client_of(api)
    assert client.version()["api"] == 1
    assert [one["name"] for one in client.jobs(everything=True, mine=True, limit=5)] == ["train"]
    assert client.job("train")["id"] == job["id"]
    assert client.wait("train", 0.5)[0] is False
    assert client.log("train").body == b"hello\n"
    assert client.events(None, 0) == ([], 0)
    assert client.act("train", "signal", {"signal": "USR1"})["job"]["id"] == job["id"]
    client.stop()
    assert [path for _, path, _ in api.asked][1:4] == [
        "/v1/jobs?all=1&mine=1&limit=5",
        "/v1/jobs/train",
        "/v1/jobs/train/wait?timeout=0.5",
    ]


def test_a_job_file_arrives_byte_for_byte_whatever_is_in_it(api: FakeApi) -> None:
    text = bytes(range(256))
    answer = client_of(api).submit("/a b/job.yaml", text, None)
    assert api.submitted == [text]
    assert answer["job"]["name"] == "job"


def test_the_daemons_no_keeps_its_lines_and_its_exit_code(api: FakeApi) -> None:
    api.problem = Problem(422, "usage", 2, "job.yaml:1:1: name: missing", "job.yaml:2:1: x: unknown field")
    with pytest.raises(ErrorResponse) as caught:
        client_of(api).submit("/job.yaml", b"", None)
    assert caught.value.lines == ["job.yaml:1:1: name: missing", "job.yaml:2:1: x: unknown field"]
    assert caught.value.code == 2


def test_a_question_is_asked_again_when_the_daemon_left_in_the_middle(api: FakeApi) -> None:
    api.add("train")
    api.happen("wait", vanish, ended())
    assert client_of(api).wait("train", 1.0)[0] is True


def crowded() -> None:
    raise Problem(
        429, "unavailable", 4, "uid 7 asks more than 100 times a second (requests_per_s); try again"
    )


def test_a_request_that_is_one_too_many_is_sent_again_for_a_while(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.add("train")
    api.happen("wait", crowded, crowded, ended())
    assert client_of(api).wait("train", 1.0)[0] is True
    monkeypatch.setattr(client_module, "CROWDED_PATIENCE_S", -1.0)
    api.happen("wait", crowded)
    with pytest.raises(ErrorResponse, match="more than 100 times a second") as caught:
        client_of(api).wait("train", 1.0)
    assert caught.value.code == 4


def test_a_question_that_kills_every_daemon_is_given_up(api: FakeApi) -> None:
    api.add("train")
    api.happen("wait", *[vanish] * 20)
    with pytest.raises(ConnectionLost, match="stopped before the answer"):
        client_of(api).wait("train", 1.0)
    assert len(api.asked) == client_module.QUESTION_TRIES + 1


def test_who_follows_outlives_any_number_of_kills(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FOLLOW_PAUSE_S", (0.0, 0.0))
    api.add("train")
    api.happen("wait", *[vanish] * 40, ended())
    assert client_of(api).following().wait("train", 1.0)[0] is True


def test_who_follows_gives_up_at_the_time_that_it_was_told(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def later() -> None:
        now[0] += 10
        vanish()

    monkeypatch.setattr(client_module, "monotonic", lambda: now[0])
    monkeypatch.setattr(client_module, "FOLLOW_PAUSE_S", (0.0, 0.0))
    api.add("train")
    api.happen("wait", *[later] * 40)
    with pytest.raises(ConnectionLost):
        client_of(api).following(until_s=95.0).wait("train", 1.0)
    assert len(api.asked) == 10


def test_who_follows_gives_up_a_daemon_that_cannot_be_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, starts = [0.0], []

    def broken(*_: object) -> None:
        now[0] += 1
        starts.append(now[0])
        raise Unavailable("the daemon did not start: the store is damaged")

    monkeypatch.setattr(client_module, "monotonic", lambda: now[0])
    monkeypatch.setattr(client_module, "FOLLOW_PAUSE_S", (0.0, 0.0))
    monkeypatch.setattr(client_module, "start", broken)
    with pytest.raises(Unavailable, match="the store is damaged"):
        Client(Endpoint(str(tmp_path / "s"), str(tmp_path))).following().version()
    assert len(starts) == client_module.FOLLOW_PATIENCE_S


def test_who_follows_does_not_bring_back_a_daemon_that_somebody_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").write_text("4711 leaving        ")
    told: list[str] = []
    monkeypatch.setattr(client_module, "start", pytest.fail)
    follower = Client(Endpoint(str(tmp_path / "s"), str(tmp_path)), told.append).following(until_s=0.1)
    with pytest.raises(Unavailable, match="the daemon was stopped; jobs go on"):
        follower.version()
    assert told == [f"{tmp_path}: {client_module.STOPPED}"]


def test_a_daemon_that_leaves_before_it_is_told_to_has_done_so(api: FakeApi) -> None:
    api.add("train")
    api.happen("stop", vanish)
    client_of(api).stop()
    assert len(api.asked) == 1


def interrupted_at(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt all requests of a method."""
    real = exchange_once

    def exchange(connection: socket.socket, verb: str, target: str, body: bytes | None) -> Response:
        if verb == method:
            raise KeyboardInterrupt
        return real(connection, verb, target, body)

    monkeypatch.setattr(client_module, "exchange", exchange)


@pytest.mark.parametrize(
    ("path", "tells"),
    [
        ("/v1/apply", "runner revisions JOB"),
        ("/v1/jobs/7/hold", "runner show 7"),
        ("/v1/jobs/two%20words/hold", "runner show JOB"),
        ("/v1/cancel", "runner list"),
    ],
)
def test_who_interrupts_a_change_learns_that_it_may_be_done_and_what_tells(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, path: str, tells: str
) -> None:
    interrupted_at("POST", monkeypatch)
    with pytest.raises(InterruptedRequest, match=f"unknown: {tells} shows it"):
        client_of(api).post(path, {})


def test_who_interrupts_a_submission_that_was_accepted_learns_its_id(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answers["submissions"] = {"jobs": [{"id": "1"}]}
    interrupted_at("POST", monkeypatch)
    with pytest.raises(InterruptedRequest, match="as 1 all the same: runner cancel 1 ends it"):
        client_of(api).submit("/job.yaml", b"name: train", None)


def test_who_interrupts_a_submission_before_it_arrived_learns_that_there_is_none(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answers["submissions"] = {"jobs": []}
    interrupted_at("POST", monkeypatch)
    with pytest.raises(InterruptedRequest, match="nothing is submitted so far: runner list --mine shows"):
        client_of(api).submit("/job.yaml", b"name: train", None)


def test_who_interrupts_a_submission_and_gets_no_answer_learns_what_tells(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_at("POST", monkeypatch)
    with pytest.raises(InterruptedRequest, match="whether it was submitted is unknown: runner list --mine"):
        client_of(api).submit("/job.yaml", b"name: train", None)


def test_a_question_that_is_interrupted_has_changed_nothing(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_at("GET", monkeypatch)
    with pytest.raises(KeyboardInterrupt) as stopped:
        client_of(api).version()
    assert not str(stopped.value)


def test_a_change_is_never_asked_for_twice(api: FakeApi) -> None:
    api.add("train")
    api.happen("restart", vanish)
    with pytest.raises(ConnectionLost, match="see runner list"):
        client_of(api).act("train", "restart", {})
    assert len(api.asked) == 1


def test_a_submission_that_was_cut_off_is_sent_again_under_the_same_token(api: FakeApi) -> None:
    api.add("earlier")
    api.happen("submit", vanish)
    client_of(api).submit("/job.yaml", b"", None)
    bodies = [body for method, _, body in api.asked if method == "POST"]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]
    assert bodies[0] is not None
    assert len(bodies[0]["token"]) == 32


def test_a_submission_outlives_a_daemon_that_is_killed_again_and_again(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "SUBMIT_PAUSE_S", 0.001)
    api.add("earlier")
    api.happen("submit", *[vanish] * 12)
    assert client_of(api).submit("/job.yaml", b"", None)["job"]["name"] == "job"


def test_a_submission_is_given_up_in_the_end(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_module.SUBMIT_PATIENCE_S >= 15
    monkeypatch.setattr(client_module, "SUBMIT_PATIENCE_S", 0.0)
    api.add("earlier")
    api.happen("submit", vanish)
    with pytest.raises(ConnectionLost):
        client_of(api).submit("/job.yaml", b"", None)
    assert api.submitted == []


def test_why_a_daemon_does_not_come_back_is_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise Unavailable("the daemon did not start: no room")

    monkeypatch.setattr(client_module, "SUBMIT_PATIENCE_S", 0.0)
    monkeypatch.setattr(client_module, "start", broken)
    with pytest.raises(Unavailable, match="no room"):
        Client(Endpoint(str(tmp_path / "s"), str(tmp_path))).submit("/job.yaml", b"", None)


@pytest.mark.parametrize(
    ("method", "more"), [("GET", ""), ("POST", "; it may have been done: see runner list")]
)
def test_a_daemon_that_takes_the_connection_and_says_nothing_is_not_waited_for_without_end(
    tmp_path: Path, method: str, more: str
) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(Unavailable, match=f"no answer within 0s{more}$"):
            Client(Endpoint(path, None)).ask(method, "/v1/version", None, 0.01)


def fail(monkeypatch: pytest.MonkeyPatch, host: str | None, ends: list[type[OSError]]) -> None:
    """Let the next requests of a client of a host end in errors."""
    left = list(ends)

    def exchange(connection: socket.socket, method: str, target: str, body: bytes | None) -> Response:
        if left:
            raise left.pop(0)
        return exchange_once(connection, method, target, body)

    monkeypatch.setattr(client_module, "exchange", exchange)
    monkeypatch.setattr(client_module, "FOLLOW_PAUSE_S", (0.0, 0.0))
    monkeypatch.setattr(client_module, "remote_host", lambda _: host)
    monkeypatch.setattr(client_module, "endpoints", lambda *_, **__: ())


@pytest.mark.parametrize("ends", [[TimeoutError], [TimeoutError, OSError, TimeoutError]])
def test_who_follows_outlives_a_line_of_ssh_that_has_gone_silent(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, ends: list[type[OSError]]
) -> None:
    fail(monkeypatch, "gpu1", ends)
    api.add("train", **ended())
    assert client_of(api).following().wait("train", 1.0)[0] is True


@pytest.mark.parametrize(("host", "ends"), [("gpu1", [TimeoutError] * 2), (None, [TimeoutError])])
def test_who_follows_gives_up_a_daemon_that_says_nothing(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, host: str | None, ends: list[type[OSError]]
) -> None:
    fail(monkeypatch, host, ends)
    api.add("train", **ended())
    with pytest.raises(NoAnswer):
        client_of(api).following().wait("train", 1.0)


def test_a_daemon_of_others_is_waited_for_and_never_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ABSENCE_LIMIT_S", 0.02)
    monkeypatch.setattr(client_module, "ABSENCE_POLL_S", 0.01)
    path, looks = str(tmp_path / "s"), iter((False, False))
    monkeypatch.setattr(client_module, "answers", lambda _: next(looks))
    with pytest.raises(NoDaemon):
        Client(Endpoint(path, None)).version()
    assert not list(looks)


@pytest.fixture
def of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the daemon of all users, where nobody listens yet."""
    for variable in ("RUNNER_SOCKET", "RUNNER_STATE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for module in (client_module, autostart):
        monkeypatch.setattr(module, "SYSTEM_SOCKET", str(tmp_path / "all.sock"))
    monkeypatch.setattr(client_module, "ABSENCE_POLL_S", 0.01)
    monkeypatch.setattr(client_module, "start", lambda *_: pytest.fail("a daemon was started"))
    return tmp_path / "all.sock"


def left_behind(path: Path) -> None:
    """Leave the socket of a daemon that is away."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def test_where_a_daemon_of_all_users_is_away_it_is_waited_for_and_nobody_starts_another(of_all: Path) -> None:
    left_behind(of_all)
    told: list[str] = []
    with FakeApi(of_all.with_suffix(".new")) as api:

        def back(line: str) -> None:
            told.append(line)
            api.socket_path.rename(of_all)

        assert client_module.find_or_start(back).version()["api"] == 1
        of_all.rename(api.socket_path)
    assert told == [f"{of_all}: no daemon answers (Connection refused); waiting for the daemon of all users"]


def test_a_daemon_of_all_users_that_does_not_come_back_is_given_up(
    of_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ABSENCE_LIMIT_S", 0.02)
    left_behind(of_all)
    with pytest.raises(NoDaemon, match=r"all\.sock: no daemon answers"):
        client_module.find_or_start()


def test_where_no_daemon_of_all_users_ever_was_the_users_own_is_tried(
    of_all: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = Endpoint(str(tmp_path / "own.sock"), str(tmp_path))
    monkeypatch.setattr(client_module, "endpoints", lambda *_, **__: (Endpoint(str(of_all), None), own))
    with FakeApi(Path(own.socket)):
        assert find().endpoint == own


def test_names_for_completion_come_quickly_or_not_at_all(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.add("train")
    assert job_names(1.0) == ["train"]
    monkeypatch.setenv("RUNNER_SOCKET", "/nowhere/s")
    assert job_names(1.0) == []


def test_the_headers_of_a_log_piece_become_values() -> None:
    headers = {
        "x-runner-attempt": "2", "x-runner-next-offset": "900", "x-runner-cut": "100-900",
        "x-runner-attempt-ended": "1", "x-runner-next-attempt": "3", "x-runner-job-ended": "0",
    }  # fmt: skip
    piece = parse_log_chunk(Response(200, headers, b""), 100)
    assert (piece.attempt, piece.next_offset, piece.cut) == (2, 900, (100, 900))
    assert (piece.attempt_ended, piece.next_attempt, piece.job_ended) == (True, 3, False)


def test_a_log_before_any_attempt_has_no_attempt() -> None:
    piece = parse_log_chunk(Response(200, {"x-runner-attempt": "0"}, b"x"), 5)
    assert (piece.attempt, piece.next_offset, piece.cut) == (None, 6, None)


def test_the_start_of_a_daemon_is_the_last_resort(api: FakeApi) -> None:
    assert client_module.find_or_start().endpoint.socket == str(api.socket_path)
    assert autostart._started == []


def test_a_daemon_that_was_long_in_coming_back_is_asked_once_more(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(client_module, "monotonic", lambda: now[0])

    def long() -> None:
        now[0] += 2 * client_module.SUBMIT_PATIENCE_S
        vanish()

    api.add("earlier")
    api.happen("submit", long)
    assert client_of(api).submit("/job.yaml", b"", None)["job"]["name"] == "job"


def test_a_submission_asks_again_while_its_packages_are_resolved_and_tells_each_step_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    client = Client(Endpoint("/nowhere", None), said.append)
    steps = ["resolving packages", "resolving packages", "packages: docopt has no wheel, and is built"]
    answers = iter([*({"pending": {"text": step}} for step in steps), {"job": {"id": "1"}}])
    tokens: list[object] = []

    def post(_: str, body: Mapping[str, object]) -> object:
        tokens.append(body["token"])
        return next(answers)

    monkeypatch.setattr(client, "post", post)
    assert client.submit("job.yaml", b"", None) == {"job": {"id": "1"}}
    assert said == ["resolving packages", "packages: docopt has no wheel, and is built"]
    assert len(set(tokens)) == 1
