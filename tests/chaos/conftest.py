"""One image and one daemon for the tests that do not break them; a fresh daemon for those that do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from images.store import ImageStore
from tests.fakes.daemon.service import Service, service
from tests.fakes.engine.engine_proxy import EngineProxy
from tests.fakes.workloads.counter_image import counter_image


@pytest.fixture(scope="session")
def counter(engine: str, base_image: str) -> Iterator[str]:
    """The id of an image whose program counts."""
    with counter_image(engine, base_image) as image:
        yield image


@pytest.fixture(scope="session")
def trainer_image(engine: str, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of the image that jobs train in, made once for every state directory."""
    assert engine
    assert base_image
    return ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")


@pytest.fixture
def daemon(counter: str) -> Iterator[Service]:
    """A daemon of one's own."""
    with service(executor="docker", allowed_images={"counter": counter}) as made:
        yield made.start()


@pytest.fixture
def proxy(engine: str, tmp_path: Path) -> Iterator[EngineProxy]:
    """A door to the engine that can be shut."""
    made = EngineProxy(tmp_path / "engine.sock", Path(engine.removeprefix("unix://")))
    yield made
    made.close()


@pytest.fixture
def behind_proxy(counter: str, proxy: EngineProxy) -> Iterator[Service]:
    """A daemon that reaches the engine through that door."""
    url = f"unix://{proxy.path}"
    with service(executor="docker", engine=url, allowed_images={"counter": counter}) as made:
        yield made.start()
