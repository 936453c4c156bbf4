"""The live line of ``runner submit --follow`` on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from runner.cli import formatting
from runner.cli.console import harmless
from runner.cli.follow import View
from runner.client.log import Lines

if TYPE_CHECKING:
    from typing import Self

    from rich.console import Console

    from runner.client.client import LogChunk
    from runner.client.types import JobDetail


class LiveView(View):
    """One progress line that is redrawn, below the permanent lines."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        columns = (SpinnerColumn(), BarColumn(24), TextColumn("{task.description}", markup=False))
        self._progress = Progress(*columns, console=console, transient=True)
        self._bar = self._progress.add_task("", total=None)
        self._lines = Lines()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._say_lines(self._lines.end())
        self._progress.stop()

    def say(self, line: str) -> None:
        self._progress.console.print(harmless(line, keep="\n"), markup=False, highlight=False)

    def build(self, line: str) -> None:
        self._show(f"building the image: {harmless(line)}")

    def output(self, piece: LogChunk) -> None:
        """Print the lines that a piece completes above the progress line."""
        self._say_lines(self._lines.add(piece.body))

    def _say_lines(self, text: bytes) -> None:
        for line in text.decode(errors="replace").removesuffix("\n").split("\n") if text else ():
            self.say(line)

    def look(self, job: JobDetail, eta_s: float | None) -> None:
        progress = job["progress"]
        if job["state"] == "preparing":
            return
        if progress is None or job["state"] != "running":
            self._show(harmless(formatting.state_line(job)))
        else:
            done, total = progress.get("step") or 0, progress.get("total_steps")
            self._show(formatting.progress_line(progress, eta_s), done, total)

    def _show(self, text: str, done: int = 0, total: int | None = None) -> None:
        self._progress.update(self._bar, description=text, completed=done, total=total)
