"""``images`` as a port of the daemon: its errors become ours at this seam."""

from pathlib import Path

from images.errors import BuildFailed as ImageBuildFailed
from images.errors import EngineUnavailable
from images.store import ImageStore
from runner.errors import Unavailable
from runner.ports import Accelerator, BuildFailed


class ImagesAdapter:
    """Satisfies ``runner.ports.Images``."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store

    def ensure(self, accelerator: Accelerator, log: Path) -> str:
        try:
            return self._store.ensure(accelerator, log)
        except ImageBuildFailed as error:
            raise BuildFailed(str(error)) from error
        except EngineUnavailable as error:
            raise Unavailable(str(error)) from error

    def digest(self, accelerator: Accelerator) -> str:
        try:
            return self._store.digest(accelerator)
        except ImageBuildFailed as error:
            raise BuildFailed(str(error)) from error
        except EngineUnavailable as error:
            raise Unavailable(str(error)) from error
