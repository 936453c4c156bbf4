"""A workshop without images, files or programs."""

from dataclasses import dataclass, field
from pathlib import Path

from runner.core.causes import Evidence, completed, explain
from runner.core.job import Attempt
from runner.core.placement import Needs
from runner.core.retry import Ended
from runner.errors import Unavailable
from runner.ports import BuildFailed, Device, Gone, JobRow, Key, LaunchRequest, Limits


@dataclass
class FakeWorkshop:
    """Satisfies ``runner.world.Workshop``."""

    instance: str
    needs_of: dict[str, Needs] = field(default_factory=dict)
    builds: int = 0
    build_error: str | None = None
    engine_down: bool = False
    mistake: Exception | None = None  # raised by whatever is asked for next
    steps: dict[str, int | None] = field(default_factory=dict)  # newest checkpoint by job
    retired: list[str] = field(default_factory=list)

    def needs(self, row: JobRow) -> Needs:
        return self.needs_of.get(row.job.id, Needs(1.0, 1024**3))

    def prepare_image(self, row: JobRow) -> str:
        self._err()
        if self.engine_down:
            raise Unavailable("the engine does not answer")
        if self.build_error:
            raise BuildFailed(self.build_error)
        self.builds += 1
        return f"img-{row.name}"

    def request(
        self, row: JobRow, attempt: Attempt, image: str, devices: tuple[Device, ...]
    ) -> LaunchRequest:
        return LaunchRequest(
            key=Key(self.instance, row.job.id, attempt.number),
            job_name=row.name,
            owner=row.owner,
            image=image,
            argv=("train", row.job.id),
            run_dir=Path("/nowhere"),
            log=Path("/nowhere/attempts/1/log.txt"),
            limits=Limits(1.0, 1024**3),
            devices=devices,
        )

    def let_go(self, row: JobRow) -> None:
        """Nothing is held for a launch."""

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> Ended:
        del attempt
        self._err()
        said = "completed" if gone.exit_code == 0 else None
        evidence = Evidence(gone.exit_code, gone.oom_seen, gone.error, said, "", reports=True)
        cause, message = explain(evidence)
        step = self.steps.get(row.job.id)
        return Ended(gone.exit_code, cause, message, completed=completed(evidence), checkpoint_step=step)

    def tend(self, row: JobRow, attempt: Attempt) -> None:
        del row, attempt
        self._err()

    def retire(self, row: JobRow) -> None:
        self.retired.append(row.job.id)

    def close(self) -> None:
        """Nothing here takes long."""

    def _err(self) -> None:
        if self.mistake is not None:
            raise self.mistake
