"""Somebody works with the engine behind our back, or the engine is broken for some requests only."""

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import docker
import pytest
from docker.models.containers import Container

from runner.adapters.docker.executor import DockerExecutor, DockerExecutorSettings
from runner.adapters.docker.hardening import HardeningSettings
from runner.adapters.host.clock import boot_id
from runner.adapters.launch import attempt_name
from runner.base.errors import Unavailable
from runner.core.ports.devices import Device
from runner.core.ports.executor import Alive, Gone, HostFault, LaunchRequest, Mount, Unknown
from tests.contract.worlds import Place, begun, docker_place, end, eventually, printed, seen
from tests.fakes.engine.engine_proxy import EngineProxy
from tests.fakes.patience import patience

pytestmark = pytest.mark.engine

SLEEP = ("/bin/sh", "-c", "echo ready; exec sleep 1000")
ONCE = ("/bin/sh", "-c", "echo one start")


@pytest.fixture(scope="module")
def place(engine: str, base_image: str) -> Iterator[Place]:
    with docker_place(engine, base_image) as place:
        yield place


@pytest.fixture
def client(engine: str) -> Iterator[docker.DockerClient]:
    with closing(docker.DockerClient(engine, version="auto")) as made:
        yield made


@pytest.fixture
def proxy(engine: str, tmp_path: Path) -> Iterator[EngineProxy]:
    made = EngineProxy(tmp_path / "engine.sock", Path(engine.removeprefix("unix://")))
    yield made
    made.close()


@pytest.fixture
def executor(place: Place, proxy: EngineProxy) -> DockerExecutor:
    hardened = HardeningSettings(place.instance, boot_id=boot_id())
    return DockerExecutor(DockerExecutorSettings(hardened, f"unix://{proxy.path}", reconnect_max_s=0.2))


def _container(client: docker.DockerClient, request: LaunchRequest) -> Container:
    return client.containers.get(attempt_name(request.key))


# --- Behind our back ----------------------------------------------------------------------------------


def test_a_container_that_is_restarted_from_outside_runs_its_program_once(
    place: Place, client: docker.DockerClient
) -> None:
    request = place.request(*SLEEP, job="restarted")
    executor = place.executor()
    executor.launch(request)
    begun(request)
    container = _container(client, request)
    first = container.attrs["State"]["StartedAt"]
    container.restart(timeout=1)
    gone = end(executor, request.key)
    assert printed(request) == "ready\n"
    assert gone.exit_code == 125
    assert "started again" in gone.error
    assert gone.started is not None
    assert f"{gone.started:%Y-%m-%dT%H:%M:%S.%f}" > first.removesuffix("Z")


def test_a_container_that_cannot_be_restarted_from_outside_has_no_exit_code(
    place: Place, client: docker.DockerClient
) -> None:
    """Its mount sources are unpinned after the launch, so a restart finds none."""
    pinned = place.root / "pinned"
    pinned.mkdir()
    request = place.request(*SLEEP, job="unpinned")
    request = replace(request, mounts=(Mount(pinned, Path("/data")),))
    executor = place.executor()
    executor.launch(request)
    begun(request)
    pinned.rmdir()
    with pytest.raises(docker.errors.APIError, match="pinned"):
        _container(client, request).restart(timeout=1)
    gone = end(executor, request.key)
    assert gone.exit_code is None
    assert "somebody started its container again, which the engine could not" in gone.error


def test_an_ended_container_that_is_started_from_outside_ends_again_and_can_be_removed(
    place: Place, client: docker.DockerClient
) -> None:
    request = place.request(*ONCE, job="started-again")
    executor = place.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    _container(client, request).start()
    assert end(executor, request.key).exit_code == 125
    executor.remove(request.key)
    assert eventually(lambda: seen(executor, request.key) is None)
    assert printed(request) == "one start\n"


def test_a_renamed_container_is_found_signalled_and_removed_and_nothing_starts_beside_it(
    place: Place, client: docker.DockerClient
) -> None:
    request = place.request(*SLEEP, job="renamed")
    executor = place.executor()
    executor.launch(request)
    begun(request)
    container = _container(client, request)
    container.rename(f"somebody-likes-this-{place.instance}")
    assert seen(executor, request.key) == Alive(request.key)
    executor.launch(request)
    assert [each.id for each in _all(client, request)] == [container.id]
    executor.signal(request.key, SIGKILL)
    assert end(executor, request.key).exit_code == 128 + SIGKILL
    executor.remove(request.key)
    assert _all(client, request) == []
    assert printed(request) == "ready\n"


def test_a_container_with_forged_labels_is_nobodys(place: Place, client: docker.DockerClient) -> None:
    request = place.request(*SLEEP, job="forged")
    labels = {"runner.instance": place.instance, "runner.job": "forged", "runner.attempt": "1"}
    forged = client.containers.create(place.image, ["true"], labels=labels)
    try:
        assert seen(place.executor(), request.key) is None
    finally:
        forged.remove()


def _all(client: docker.DockerClient, request: LaunchRequest) -> list[Container]:
    labels = [f"runner.instance={request.key.instance}", f"runner.job={request.key.job_id}"]
    return list(client.containers.list(all=True, filters={"label": labels}))


# --- An engine that is broken in part -----------------------------------------------------------------


@pytest.mark.parametrize("call", ["/containers/create", "/start"])
def test_an_engine_that_answers_500_to_launches_is_unavailable_and_blames_no_attempt(
    place: Place, proxy: EngineProxy, executor: DockerExecutor, call: str
) -> None:
    request = place.request(*ONCE, job=f"broken{call.replace('/', '-')}")
    proxy.fail(call)
    for _ in range(3):
        with pytest.raises(Unavailable, match="the engine is broken"):
            executor.launch(request)
    proxy.mend()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    assert printed(request) == "one start\n"


def test_a_container_of_an_earlier_request_that_was_never_started_is_replaced(
    place: Place, proxy: EngineProxy, executor: DockerExecutor
) -> None:
    request = place.request("/bin/sh", "-c", 'echo "$MEAN"', job="outdated")
    proxy.fail("/start")
    with pytest.raises(Unavailable):
        executor.launch(replace(request, environment={"MEAN": "1"}))
    proxy.mend()
    executor.launch(replace(request, environment={"MEAN": "2"}))
    assert end(executor, request.key).exit_code == 0
    assert printed(request) == "2\n"


def test_a_container_that_the_engine_cannot_start_is_refused(place: Place, executor: DockerExecutor) -> None:
    request = place.request(*ONCE, job="cannot-start")
    device = Device("no-such-device", "nvidia", "H100")
    with pytest.raises(HostFault, match=r"no-such-device|could not select|CDI"):
        executor.launch(replace(request, devices=(device,)))
    assert seen(executor, request.key) is None


def test_a_container_that_cannot_be_inspected_is_unknown_and_the_others_are_seen(
    place: Place, proxy: EngineProxy, executor: DockerExecutor, client: docker.DockerClient
) -> None:
    odd, other = place.request(*ONCE, job="odd"), place.request(*ONCE, job="other")
    for request in (odd, other):
        executor.launch(request)
        end(executor, request.key)
    proxy.fail(f"/containers/{_container(client, odd).id}/json")
    unknown = seen(executor, odd.key)
    assert isinstance(unknown, Unknown)
    assert "the engine is broken" in unknown.why
    assert isinstance(seen(executor, other.key), Gone)
    proxy.mend()
    assert isinstance(seen(executor, odd.key), Gone)


def test_half_an_event_does_not_end_the_watch(
    place: Place, proxy: EngineProxy, executor: DockerExecutor
) -> None:
    cut = proxy.cut_answer("/events", '"Action":"create"')
    woken = threading.Event()
    stop = executor.watch(woken.set)
    try:
        assert woken.wait(patience())  # connected
        executor.launch(place.request(*ONCE, job="half"))
        assert cut.wait(patience())
        woken.clear()
        assert woken.wait(patience())  # connected again
        request = place.request(*ONCE, job="after-half")
        executor.launch(request)

        def ended() -> bool:
            assert woken.wait(patience())
            woken.clear()
            return isinstance(seen(executor, request.key), Gone)

        eventually(ended)
    finally:
        stop()
