"""A container engine that keeps its images in a dictionary."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Event
from typing import IO, Any

from images.cancellation import CancellationToken
from images.errors import BuildFailed, EngineUnavailable
from images.ports import Addition, BuildRequest, Image, Step, StepEnd
from images.settings import BuilderKind
from tests.fakes.patience import patience

FACTS = {
    "python": "3.11",
    "machine": "x86_64",
    "glibc": "2.36",
    "has": {"cc": True, "cxx": True, "headers": True, "venv": True},
}


@dataclass
class Built:
    """A build that was asked for."""

    kind: BuilderKind
    request: BuildRequest
    dockerfile: str
    files: frozenset[str]


@dataclass
class FakeEngine:
    """Satisfies ``images.ports.Engine``; every image gets the next number as its id."""

    registry: set[str] = field(default_factory=set)
    facts: dict[str, object] = field(default_factory=lambda: dict(FACTS))
    failing: Iterable[str] = ()  # what a build prints before it fails
    in_use: frozenset[str] = frozenset()
    store: dict[str, Image] = field(default_factory=dict)
    tagged: dict[str, str] = field(default_factory=dict)
    pulled: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    builds: list[Built] = field(default_factory=list)
    loaded: dict[str, bytes] = field(default_factory=dict)  # layers by the tag of their image
    additions: list[Addition] = field(default_factory=list)
    layers: dict[str, list[str]] = field(default_factory=dict)  # by the id of the image
    endless: bool = False  # builds go on until they are broken off
    building: Event = field(default_factory=Event)
    broken_off: Event = field(default_factory=Event)

    def add(self, tag: str, labels: dict[str, str] | None = None) -> Image:
        """Put an image there, as if somebody had made it."""
        image = Image(f"sha256:{len(self.store):064x}", (), labels or {}, 1)
        self.store[image.id] = image
        self.tagged[tag] = image.id
        return self._with_tags(image)

    def image(self, reference: str) -> Image | None:
        found = self.store.get(self.tagged.get(reference, reference))
        return None if found is None else self._with_tags(found)

    def inspect(self, reference: str) -> Mapping[str, Any]:
        found = self.image(reference)
        if found is None:
            raise BuildFailed(f"image {reference}: is not in the engine")
        config = {"Env": ["PATH=/usr/bin"], "Labels": dict(found.labels), "User": "65532:65532"}
        layers = {"Type": "layers", "Layers": self.layers.get(found.id, [f"sha256:{'0' * 64}"])}
        return {"Id": found.id, "Config": config, "RootFS": layers, "Architecture": "amd64", "Os": "linux"}

    def images(self, label: str) -> tuple[Image, ...]:
        return tuple(self._with_tags(image) for image in self.store.values() if label in image.labels)

    def tag(self, image: str, tag: str) -> None:
        self.tagged[tag] = self.tagged.get(image, image)

    def pull(
        self, reference: str, say: Callable[[str], None] | None = None, token: CancellationToken | None = None
    ) -> None:
        del say, token
        self.pulled.append(reference)
        if reference not in self.registry:
            raise BuildFailed(f"pull {reference}: no such host")
        self.add(reference)

    def look_up(self, reference: str) -> str:
        if reference not in self.registry:
            raise BuildFailed(f"image {reference}: no such host")
        return f"sha256:{hashlib.sha256(reference.encode()).hexdigest()}"

    def load_root(self, archive: IO[bytes], tag: str) -> str:
        archive.read()
        return self.add(tag).id

    def step(self, step: Step, token: CancellationToken | None = None) -> StepEnd:
        del token
        self.steps.append(step)
        if step.commit is None:
            return StepEnd(0, json.dumps(self.facts))
        self.facts = {**self.facts, "has": dict.fromkeys(FACTS["has"], True)}
        return StepEnd(0, "installed", self.add(step.commit).id)

    def add_layer(self, addition: Addition, layer: Iterable[bytes], token: CancellationToken) -> None:
        body = b"".join(layer)
        token.check()
        below = self.image(addition.below)
        if below is None:
            raise BuildFailed(f"image {addition.below}: is not in the engine")
        made = self.add(addition.tag, {**below.labels, **addition.labels})
        below_layers = self.layers.get(below.id, [f"sha256:{'0' * 64}"])
        self.layers[made.id] = [*below_layers, f"sha256:{hashlib.sha256(body).hexdigest()}"]
        self.loaded[addition.tag] = body
        self.additions.append(addition)

    def builders(self) -> Iterator[BuilderKind]:
        yield "engine"
        yield "classic"

    def platform(self) -> str:
        return "linux/amd64"

    def build(
        self, kind: BuilderKind, request: BuildRequest, context: IO[bytes], token: CancellationToken
    ) -> Iterator[str]:
        with tarfile.open(fileobj=io.BytesIO(context.read())) as tar:
            dockerfile = tar.extractfile(request.dockerfile)
            assert dockerfile is not None
            self.builds.append(Built(kind, request, dockerfile.read().decode(), frozenset(tar.getnames())))
        with token.on_cancel(self.broken_off.set):
            yield from self._building()
        yield from self.failing
        if self.failing:
            raise BuildFailed("executor failed running [/bin/sh -c pip]: exit code: 1")
        self.add(request.tag, dict(request.labels))

    def _building(self) -> Iterator[str]:
        if self.endless:
            yield "a long step"
            self.building.set()
            assert self.broken_off.wait(patience())
            raise EngineUnavailable("the connection was closed")

    def used(self) -> frozenset[str]:
        return self.in_use

    def remove(self, reference: str) -> None:
        image = self.tagged.pop(reference, reference)
        if image not in self.tagged.values():
            self.store.pop(image, None)

    def _with_tags(self, image: Image) -> Image:
        return replace(image, tags=tuple(sorted(tag for tag, of in self.tagged.items() if of == image.id)))
