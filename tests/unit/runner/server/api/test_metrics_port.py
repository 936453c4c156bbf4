"""The port for figures: what it gives, and how it comes to have its address."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from errno import EADDRINUSE, EADDRNOTAVAIL
from pathlib import Path
from threading import enumerate as threads

import pytest
from structlog.testing import capture_logs

from runner.base.errors import UsageError
from runner.files.settings.live import LiveSettings
from runner.server.api import metrics_port, status
from runner.server.api.metrics_port import MetricsPort
from runner.services.jobs import JobService
from runner.services.monitor.monitor import UtilizationMonitor
from tests.fakes.patience import patience
from tests.unit.runner.server.api.test_jobs import wait_until
from tests.unit.runner.server.api.test_status import Watched, read

NOWHERE = "203.0.113.9:9835"  # an address of documentation: no machine has it
AGAIN_S = 0.01


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Watched]:
    place = Watched(tmp_path)
    yield place
    place.service.daemon.stop()


@contextmanager
def started(place: Watched, listen: str) -> Iterator[MetricsPort]:
    server = MetricsPort(place.app.state.metrics, listen, AGAIN_S)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def taken() -> Iterator[str]:
    """Let somebody else have a port, and tell which."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


def listening(service: JobService, listen: str) -> JobService:
    metrics = service.settings.metrics.model_copy(update={"listen": listen})
    settings = service.settings.model_copy(update={"metrics": metrics, "watch_every_s": 0.05})
    return replace(service, live=LiveSettings(settings))


def attach(place: Watched, listen: str) -> tuple[UtilizationMonitor, MetricsPort]:
    """Attach the routes to an application whose settings have a metrics port."""
    monitor, port = status.attach(place.app, listening(place.service, listen), dict, lambda _: None)
    assert port is not None
    return monitor, port


def get(server: MetricsPort, path: str) -> tuple[int, str]:
    assert server.address is not None
    return ask(server.address, path)


def ask(address: tuple[str, int], path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=patience())
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_a_port_gives_the_figures_and_nothing_else(place: Watched) -> None:
    with started(place, "127.0.0.1:0") as server:
        status, text = get(server, "/metrics")
        assert (status, read(text)["runner_devices", "free"]) == (200, 2)
        assert [get(server, path)[0] for path in ("/", "/v1/jobs", "/metrics/x")] == [404] * 3


def test_a_port_may_be_of_the_newer_protocol(place: Watched) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(str(error))
    with started(place, "[::1]:0") as server:
        assert get(server, "/metrics")[0] == 200


def test_who_hangs_up_disturbs_nobody(place: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    with started(place, "127.0.0.1:0") as server:
        assert server.address is not None
        for rude in (b"", b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.0\r\n"):
            with socket.create_connection(server.address, timeout=patience()) as connection:
                connection.sendall(rude)
        assert get(server, "/metrics")[0] == 200
    assert "Traceback" not in capsys.readouterr().err


def test_who_dawdles_keeps_no_daemon_from_leaving(place: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "CONNECTION_S", patience())
    with started(place, "127.0.0.1:0") as server:
        assert server.address is not None
        with socket.create_connection(server.address, timeout=patience()) as connection:
            connection.sendall(b"GET /met")
            wait_until(lambda: server._open or None)
            server.stop()
            assert "metrics" not in {thread.name for thread in threads()}


def test_an_address_that_nobody_could_ever_have_is_refused_at_the_start(place: Watched) -> None:
    with pytest.raises(UsageError, match=r"metrics\.listen: \.\.:9835: cannot listen"):
        attach(place, "..:9835")


def refuse(monkeypatch: pytest.MonkeyPatch, *problems: OSError) -> None:
    """Let the port be had only after these."""
    bind, refusals = socket.create_server, iter(problems)

    def refuse_first(address: tuple[str, int], *, family: int) -> socket.socket:
        if refusal := next(refusals, None):
            raise refusal
        return bind(address, family=family)

    monkeypatch.setattr(socket, "create_server", refuse_first)


@pytest.mark.parametrize("errno", [EADDRINUSE, EADDRNOTAVAIL])
def test_an_address_that_cannot_be_had_now_is_said_once_and_had_as_soon_as_it_can(
    place: Watched, monkeypatch: pytest.MonkeyPatch, errno: int
) -> None:
    refuse(monkeypatch, *[OSError(errno, "not now")] * 3)
    with capture_logs() as lines, started(place, "127.0.0.1:0") as server:
        assert get_when_it_listens(server) == 200
    said = [(line["log_level"], line["event"]) for line in lines if line["event"].startswith("metrics.")]
    assert said == [("warning", "metrics.cannot_listen"), ("info", "metrics.listening")]
    [first] = [line for line in lines if line["event"] == "metrics.cannot_listen"]
    assert (first["listen"], first["problem"], first["again_in_s"]) == (
        "127.0.0.1:0",
        f"[Errno {errno}] not now",
        AGAIN_S,
    )


def get_when_it_listens(server: MetricsPort) -> int:
    return ask(wait_until(lambda: server.address), "/metrics")[0]


def test_a_port_that_somebody_else_has_is_taken_when_they_have_left(place: Watched) -> None:
    with taken() as listen:
        server = MetricsPort(place.app.state.metrics, listen, AGAIN_S)
        server.start()
        assert server.address is None
    try:
        assert get_when_it_listens(server) == 200
        assert server.address == ("127.0.0.1", int(listen.rpartition(":")[2]))
    finally:
        server.stop()


def test_an_address_that_is_not_there_yet_keeps_nobody_from_starting(place: Watched) -> None:
    with capture_logs() as lines:
        _, port = attach(place, NOWHERE)
    assert port.address is None
    assert [line["event"] for line in lines] == ["metrics.cannot_listen"]


def test_whatever_it_is_later_that_keeps_the_port_from_being_had_it_is_tried_again(
    place: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, OSError(EADDRINUSE, "taken"), OSError("no files left"), OSError("no files left"))
    with capture_logs() as lines, started(place, "127.0.0.1:0") as server:
        assert get_when_it_listens(server) == 200
    problems = [line["problem"] for line in lines if line["event"] == "metrics.cannot_listen"]
    assert problems == [f"[Errno {EADDRINUSE}] taken", "no files left"]


def test_a_daemon_that_leaves_tries_no_more_and_does_not_wait(
    place: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_port, "STOP_S", patience())
    with taken() as listen:
        server = MetricsPort(place.app.state.metrics, listen, retry_s=2 * patience())
        server.start()
        server.stop()
        assert "metrics" not in {thread.name for thread in threads()}
    assert server.address is None


def test_a_port_that_was_never_started_is_given_back(place: Watched) -> None:
    server = MetricsPort(place.app.state.metrics, "127.0.0.1:0")
    address = server.address
    assert address is not None
    server.stop()
    socket.create_server(address).close()


def test_a_port_gives_figures_while_the_monitor_looks_and_none_once_it_is_stopped(place: Watched) -> None:
    monitor, port = attach(place, "127.0.0.1:0")
    address = port.address
    assert address is not None
    monitor.start()
    port.start()
    while len(monitor.lags) < 3:
        assert ask(address, "/metrics")[0] == 200
    port.stop()
    monitor.stop()
    with pytest.raises(ConnectionError):
        ask(address, "/metrics")


# --- slow clients


def test_a_client_that_sends_nothing_keeps_nobody_waiting(place: Watched) -> None:
    with started(place, "127.0.0.1:0") as server:
        assert server.address is not None
        with socket.create_connection(server.address) as silent:
            silent.send(b"GET /met")
            assert get(server, "/metrics")[0] == 200


def test_more_silent_clients_than_are_served_keep_nobody_waiting(
    place: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_port, "CONNECTION_S", patience())  # room is made, and no time has passed
    with started(place, "127.0.0.1:0") as server:
        assert server.address is not None
        silent = [socket.create_connection(server.address) for _ in range(metrics_port.MAX_CONNECTIONS + 4)]
        assert get(server, "/metrics")[0] == 200
        silent[0].settimeout(patience())
        assert silent[0].recv(1) == b""  # the oldest has made room
        for each in silent:
            each.close()


def test_a_client_is_not_cut_off_while_there_is_room(place: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "CONNECTION_S", patience())
    with started(place, "127.0.0.1:0") as server, ExitStack() as stack:
        assert server.address is not None
        first, *_ = (
            stack.enter_context(socket.create_connection(server.address, timeout=patience()))
            for _ in range(metrics_port.MAX_CONNECTIONS - 1)
        )
        assert get(server, "/metrics")[0] == 200
        first.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert first.recv(12) == b"HTTP/1.0 200"


def test_a_connection_has_a_deadline_however_busy_it_looks(
    place: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_port, "CONNECTION_S", 0.2)
    with started(place, "127.0.0.1:0") as server:
        assert server.address is not None
        with socket.create_connection(server.address) as slow:
            slow.settimeout(patience())
            slow.send(b"GET /metrics HTTP/1.1\r\nX-")
            assert slow.recv(1) == b""
