"""An image store that builds nothing."""

from pathlib import Path

from runner.ports import Accelerator


class FakeImages:
    """Satisfies ``runner.ports.Images``."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ensure(self, accelerator: Accelerator, log: Path) -> str:
        self.asked.append(accelerator)
        log.write_text("building\nbuilt\n")
        return f"sha256:{accelerator}"

    def digest(self, accelerator: Accelerator) -> str:
        return f"digest-{accelerator}"
