"""An image store that builds nothing."""

from pathlib import Path

from runner.core.ports.images import Accelerator, BuildFailed, PullPolicy


class FakeImages:
    """Satisfies ``runner.core.ports.images.Images``."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.left: list[str] = []
        self.offered: dict[str, str] = {}

    def ensure(self, accelerator: Accelerator, log: Path, job_id: str) -> str:
        del job_id
        self.asked.append(accelerator)
        log.write_text("building\nbuilt\n")
        return f"sha256:{accelerator}"

    def leave(self, job_id: str) -> None:
        self.left.append(job_id)

    def close(self) -> None:
        """Nothing is being built."""

    def resolve(self, reference: str) -> str:
        if reference not in self.offered:
            raise BuildFailed(f"image {reference}: is not in the engine")
        return self.offered[reference]

    def pin(self, reference: str, pull: PullPolicy) -> str:
        """Return a digest by which the image is fetched, also after its tag has moved."""
        if pull == "always":
            self.asked.append(reference)
        image = self.resolve(reference)
        self.offered[image] = image
        return image

    def fetch(self, reference: str, log: Path, job_id: str) -> str:
        del job_id
        log.write_text(f"pull {reference}\n")
        return self.resolve(reference)

    def digest(self, accelerator: Accelerator) -> str:
        return f"digest-{accelerator}"
