"""An engine that goes away, or acts and does not answer: nothing is concluded, nothing starts twice."""

import threading
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import pytest

from runner.adapters.docker.executor import DockerExecutor, DockerExecutorSettings
from runner.adapters.docker.hardening import HardeningSettings
from runner.adapters.host.clock import boot_id
from runner.base.errors import Unavailable
from runner.core.ports.executor import Alive, Gone
from tests.contract.worlds import Place, begun, docker_place, end, eventually, printed, seen
from tests.fakes.engine.engine_proxy import EngineProxy
from tests.fakes.patience import patience

pytestmark = pytest.mark.engine

ONCE = ("/bin/sh", "-c", "echo one start")
SAVES = ("/bin/sh", "-c", "trap 'exit 75' TERM; echo ready; while :; do sleep 0.02; done")


@pytest.fixture(scope="module")
def place(engine: str, base_image: str) -> Iterator[Place]:
    with docker_place(engine, base_image) as place:
        yield place


@pytest.fixture
def proxy(engine: str, tmp_path: Path) -> Iterator[EngineProxy]:
    proxy = EngineProxy(tmp_path / "engine.sock", Path(engine.removeprefix("unix://")))
    yield proxy
    if proxy.path.exists():
        proxy.shut()


@pytest.fixture
def executor(place: Place, proxy: EngineProxy) -> DockerExecutor:
    hardened = HardeningSettings(place.instance, boot_id=boot_id())
    return DockerExecutor(DockerExecutorSettings(hardened, f"unix://{proxy.path}", reconnect_max_s=0.2))


@pytest.mark.parametrize("call", ["/containers/create", "/json", "/start"])
def test_a_launch_whose_answer_is_lost_can_be_repeated_and_starts_once(
    place: Place, proxy: EngineProxy, executor: DockerExecutor, call: str
) -> None:
    request = place.request(*ONCE, job=f"lost{call.replace('/', '-')}")
    executor.observe()  # connected
    proxy.lose_answer_to(call)
    with pytest.raises(Unavailable):
        executor.launch(request)
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    assert printed(request) == "one start\n"


def test_a_removal_whose_answer_is_lost_can_be_repeated(
    place: Place, proxy: EngineProxy, executor: DockerExecutor
) -> None:
    request = place.request(*ONCE, job="lost-removal")
    executor.launch(request)
    end(executor, request.key)
    proxy.lose_answer_to("DELETE")
    with pytest.raises(Unavailable):
        executor.remove(request.key)
    executor.remove(request.key)
    assert eventually(lambda: seen(executor, request.key) is None)


def test_an_outage_is_no_evidence_and_the_attempt_is_found_again(
    place: Place, proxy: EngineProxy, executor: DockerExecutor
) -> None:
    request = place.request(*SAVES, job="outage")
    executor.launch(request)
    begun(request)
    proxy.shut()
    with pytest.raises(Unavailable):
        executor.observe()
    with pytest.raises(Unavailable):
        executor.signal(request.key, SIGTERM)
    proxy.resume()
    assert isinstance(seen(executor, request.key), Alive)
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 75


def test_a_watch_listens_again_after_an_outage_and_wakes_at_once(
    place: Place, proxy: EngineProxy, executor: DockerExecutor
) -> None:
    woken = threading.Event()
    stop = executor.watch(woken.set)
    assert woken.wait(patience())  # connected
    proxy.shut()
    woken.clear()
    proxy.resume()
    assert woken.wait(patience())  # something may have happened meanwhile
    request = place.request(*ONCE, job="watched")
    executor.launch(request)

    def ended() -> bool:
        woken.wait(0.5)
        woken.clear()
        return isinstance(seen(executor, request.key), Gone)

    eventually(ended)
    stop()


def test_an_end_during_an_outage_is_seen_afterwards(
    place: Place, proxy: EngineProxy, executor: DockerExecutor
) -> None:
    request = place.request(*SAVES, job="ends-unseen")
    executor.launch(request)
    begun(request)
    proxy.shut()
    direct = place.executor()
    direct.signal(request.key, SIGTERM)
    end(direct, request.key)
    proxy.resume()
    assert end(executor, request.key).exit_code == 75
