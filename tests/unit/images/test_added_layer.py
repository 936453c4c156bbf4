"""An image is another one with a layer more, made by a build."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from images.added_layer import Addition, LayerBuilder, LayerFile, tag_of
from images.cancellation import CancellationToken
from images.errors import BuildCancelled, BuildFailed
from images.log import BuildLog
from images.ports import BuildRequest
from images.settings import BuilderKind
from tests.fakes.engine.image_engine import FakeEngine

BODY = bytes(range(256)) * 5000


class KeepingEngine(FakeEngine):
    """Keeps the contexts of builds."""

    def build(
        self, kind: BuilderKind, request: BuildRequest, context: IO[bytes], token: CancellationToken
    ) -> Iterator[str]:
        self.context = context.read()
        yield from super().build(kind, request, io.BytesIO(self.context), token)


@pytest.fixture
def engine() -> KeepingEngine:
    return KeepingEngine()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[BuildLog]:
    with BuildLog(tmp_path / "log.txt") as made:
        yield made


def layer() -> LayerFile:
    return LayerFile(io.BytesIO(BODY), len(BODY))


def built(engine: KeepingEngine, addition: Addition, log: BuildLog, tmp_path: Path) -> str:
    """Return the Dockerfile of a build."""
    LayerBuilder(engine, tmp_path).build(addition, layer(), log, "packages: layer")
    return engine.builds[-1].dockerfile


def test_a_context_holds_the_layer_and_nothing_of_those_below(
    engine: KeepingEngine, log: BuildLog, tmp_path: Path
) -> None:
    below = engine.add("runner-cpu:h-1").id
    text = built(engine, Addition("made:h-2", below, {"runner.digest": "d"}), log, tmp_path)
    assert text.splitlines() == ["ARG BASE", "FROM ${BASE}", 'LABEL runner.digest="d"', "ADD layer.tar /"]
    with tarfile.open(fileobj=io.BytesIO(engine.context)) as tar:
        assert tar.getnames() == ["Dockerfile", "layer.tar"]
        assert (tar.extractfile("layer.tar") or io.BytesIO()).read() == BODY
    request = engine.builds[-1].request
    assert (request.tag, request.arguments) == ("made:h-2", {"BASE": "runner-cpu:h-1"})
    image = engine.image("made:h-2")
    assert image is not None
    assert image.labels == {"runner.digest": "d"}
    assert not request.network


def test_no_byte_of_a_variable_is_read_as_a_part_of_the_dockerfile(
    engine: KeepingEngine, log: BuildLog, tmp_path: Path
) -> None:
    below = engine.add("runner-cpu:h-1").id
    addition = Addition("made:h-2", below, {}, {"PATH": r'/a b:$HOME:"x"\y'})
    assert built(engine, addition, log, tmp_path).splitlines()[2] == r'ENV PATH="/a b:\$HOME:\"x\"\\y"'


def test_what_is_removed_is_removed_before_the_layer_comes_and_the_user_stays(
    engine: KeepingEngine, log: BuildLog, tmp_path: Path
) -> None:
    below = engine.add("runner-cpu:h-1").id
    lines = built(engine, Addition("made:h-2", below, {}, removed=("/etc/a b",)), log, tmp_path).splitlines()
    assert lines[2:] == [
        "USER 0:0",
        'RUN ["rm", "-rf", "--", "/etc/a b"]',
        "USER 65532:65532",
        "ADD layer.tar /",
    ]
    assert json.loads(lines[3].removeprefix("RUN "))[-1] == "/etc/a b"


@pytest.mark.parametrize(("kind", "used"), [("auto", "classic"), ("engine", "engine")])
def test_the_builder_of_the_settings_is_used(
    engine: KeepingEngine, log: BuildLog, tmp_path: Path, kind: BuilderKind, used: str
) -> None:
    below = engine.add("runner-cpu:h-1").id
    LayerBuilder(engine, tmp_path, kind).build(Addition("made:h-2", below, {}), layer(), log, "layer")
    assert engine.builds[-1].kind == used


def test_an_image_that_is_known_by_its_id_alone_gets_a_tag(engine: KeepingEngine) -> None:
    below = engine.add("some:tag").id
    del engine.tagged["some:tag"]
    made = tag_of(engine, below)
    assert made == f"runner-base:id-{below.removeprefix('sha256:')[:16]}"
    assert engine.tagged[made] == below


def test_an_image_that_is_gone_is_told(engine: KeepingEngine, log: BuildLog, tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="image sha256:0: is not in the engine"):
        built(engine, Addition("made:h-2", "sha256:0", {}), log, tmp_path)


def test_a_cancelled_build_sends_nothing(engine: KeepingEngine, log: BuildLog, tmp_path: Path) -> None:
    below = engine.add("runner-cpu:h-1").id
    log.token.cancel("no job waits")
    with pytest.raises(BuildCancelled):
        built(engine, Addition("made:h-2", below, {}), log, tmp_path)
    assert engine.builds == []
