"""Images that are named by the digest of what determines them, so that each is built once, whoever asks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from images.digest import LABEL, tag
from images.errors import BuildFailed
from images.file_lock import locked
from images.log import BuildLog
from images.ports import Engine, Image
from images.recipe import Kind
from images.records import record
from images.settings import Accelerator


@dataclass(frozen=True, slots=True)
class AddressedImage:
    """The name of an image, whether it is there or not."""

    kind: Kind
    accelerator: Accelerator
    address: str

    @property
    def tag(self) -> str:
        """The tag, which has a part of the digest; the label has all of it."""
        return tag(self.kind, self.accelerator, self.address)

    def labels(self, below: str) -> dict[str, str]:
        """Return the labels of the image; ``below`` is the one that it is built on."""
        return {
            LABEL: self.address,
            "runner.accelerator": self.accelerator,
            "runner.kind": self.kind,
            "runner.below": below,
        }

    def find(self, engine: Engine) -> Image | None:
        """Return the image, None if the engine does not have it."""
        image = engine.image(self.tag)
        return image if image is not None and image.labels.get(LABEL) == self.address else None

    def built(self, engine: Engine, log: BuildLog) -> Image:
        """Return the image that was built just now.

        Raises:
            BuildFailed: the engine does not have it.
        """
        image = self.find(engine)
        if image is None:
            raise BuildFailed(f"{self.tag}: the build succeeded, but the engine does not have the image")
        log.line(f"{self.kind}: {self.tag} is {image.id}")
        return image

    def ensure(self, engine: Engine, cache_dir: Path, log: BuildLog, build: Callable[[], object]) -> str:
        """Return the id of the image, recorded as used; it is built unless another build has just done it."""
        image = self.find(engine)
        if image is None:
            waiting = partial(log.line, f"{self.kind}: waiting for another build of the same")
            with locked(cache_dir, self.address, waiting, log.token):
                image = self.find(engine)
                if image is None:
                    build()
                    image = self.built(engine, log)
        record(cache_dir, image.id)
        return image.id
