"""Saving and resuming: the interface of the checkpoints for the training loop.

A save clones the state on the training thread and publishes the clone on a writer thread, one at a
time.  An error of the writer is raised at the next step boundary.  Only a full disk during a periodic
save is tolerated: the older checkpoint still exists, and the next save tries again.

A resume first reads (``find``) and changes nothing until the state has been accepted (``adopt``), so
a rejection leaves the lineage unchanged.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from jobs.checkpoint import directory as lineage
from jobs.checkpoint.directory import Provenance, Snapshot
from jobs.checkpoint.interval import EvaluationGuard, SaveSchedule
from jobs.checkpoint.signatures import same_training
from jobs.checkpoint.state import Plain, clone, weights_sha256
from jobs.contract import (
    CheckpointInvalid,
    CheckpointPlan,
    Manifest,
    Phase,
    Rejected,
    checkpoint_name,
    checkpoints,
    verify,
)
from jobs.training.failures import DiskFull, InvalidSpec, NoValidCheckpoint
from jobs.training.report import Reporter, say, warn


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A valid checkpoint to resume from, and the directories to set aside when it is adopted."""

    manifest: Manifest
    state: Plain
    rejected: tuple[Rejected, ...] = ()
    newer: tuple[Path, ...] = ()


class Checkpoints:
    """The checkpoints of one lineage, written by one attempt that holds its lock."""

    def __init__(
        self,
        directory: Path,
        plan: CheckpointPlan,
        provenance: Provenance,
        reporter: Reporter,
        *,
        in_background: bool,
    ) -> None:
        self._directory = directory
        self._plan = plan
        self.provenance = provenance
        self._reporter = reporter
        self._in_background = in_background
        self._save_schedule = SaveSchedule(plan)
        self.guard = EvaluationGuard(plan)
        """Guard that says if a checkpoint is due before an evaluation."""
        self._saved_at = time.monotonic()
        self._write_s = 0.0  # duration of the latest write; set on the writer's thread
        self._newest: int | None = None
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Finish the pending write; its failure is only logged if another error is already being raised."""
        self._pool.shutdown(wait=True)
        failed = self._writing.exception() if self._writing and error else None
        if failed:
            warn(f"the last checkpoint was not written: {failed}")
        else:
            self.settle()

    # --- Resuming

    def finished(self, step: int) -> Manifest | None:
        """Return the manifest of the final weights if the same training has already published them.

        ``step`` is the last one of the plan; early stopping publishes an earlier one.
        """
        try:
            manifest = verify(self._directory / lineage.FINAL)
        except CheckpointInvalid:
            return None
        ended = manifest.step == step or bool(manifest.stopped_early)
        same = ended and same_training(manifest.signatures, self.provenance.signatures)
        return manifest if same else None

    def find(self, resume_step: int | None) -> ResumePoint | None:
        """Return the checkpoint to resume from, or None if there has never been one; change nothing.

        Raises:
            NoValidCheckpoint: Checkpoints exist, and none is usable.
            InvalidSpec: The checkpoint of the requested step is missing or not valid.
        """
        return self._find_newest() if resume_step is None else self._find_step(resume_step)

    def adopt(self, found: ResumePoint | None) -> None:
        """Sweep leftovers, and set aside rejected checkpoints and everything newer than the one found."""
        lineage.sweep(self._directory)
        if found is None:
            return
        for path in found.newer:
            lineage.set_aside(path, "superseded")
        for rejected in found.rejected:
            lineage.set_aside_bad(self._directory / rejected.name)
        self._newest = found.manifest.step

    def _find_newest(self) -> ResumePoint | None:
        rejected: list[Rejected] = []
        for _, path in checkpoints(self._directory):
            try:
                return ResumePoint(verify(path), lineage.load(path), tuple(rejected))
            except CheckpointInvalid as error:
                rejected.append(Rejected(name=path.name, why=str(error)[:1000]))
        rejected += [
            Rejected(name=path.name[:200], why="rejected earlier") for path in self._directory.glob("bad-*")
        ]
        if rejected:
            raise NoValidCheckpoint(_none_valid(self._directory, rejected), tuple(rejected))
        return None

    def _find_step(self, step: int) -> ResumePoint:
        path = self._directory / checkpoint_name(step)
        present = dict(checkpoints(self._directory))
        if step not in present:
            steps = ", ".join(str(each) for each in sorted(present)) or "none"
            raise InvalidSpec(
                f"resume_step {step}: no such checkpoint; lineage {self.provenance.lineage} has {steps}"
            )
        try:
            manifest, state = verify(path), lineage.load(path)
        except CheckpointInvalid as error:
            raise InvalidSpec(f"resume_step {step}: the checkpoint is not valid: {error}") from error
        final = self._directory / lineage.FINAL
        newer = [each for number, each in present.items() if number > step]
        newer += lineage.bests(self._directory, beyond=step)
        return ResumePoint(manifest, state, newer=(*newer, *([final] if final.exists() else [])))

    def has_best(self) -> bool:
        """Return True if the weights of a best evaluation exist."""
        return bool(lineage.bests(self._directory))

    # --- Saving

    @property
    def stall_s(self) -> float | None:
        """The seconds for which a save holds training up; None before the first save."""
        return self._save_schedule.stall_s

    def due(self, step: int) -> bool:
        """Return True if a checkpoint is due after this step."""
        counts = (self._plan.every_steps, self._plan.milestone_every)
        if any(count is not None and step % count == 0 for count in counts):
            return True
        seconds = self._save_schedule.every_s
        return seconds is not None and time.monotonic() - self._saved_at >= seconds

    def save(self, step: int, state: Plain) -> None:
        """Clone the state and publish it on the writer's thread; a full disk causes only a warning."""
        began = time.monotonic()
        with self._reporter.within(Phase.SAVE):
            is_new = self._begin(step, state)
            if not self._in_background:
                self.settle()
        if is_new:
            self._cost(time.monotonic() - began)

    def save_now(self, step: int, state: Plain) -> None:
        """Save the state, and return when the checkpoint is durable.

        Raises:
            DiskFull: The checkpoint could not be written; older checkpoints are unchanged.
        """
        with self._reporter.within(Phase.DRAIN):
            self._begin(step, state)
            self._collect()

    def poll(self) -> None:
        """Settle the pending write if it has ended, and raise its error, if any."""
        if self._writing and self._writing.done():
            self.settle()

    def settle(self) -> None:
        """Wait for the writer and raise its error, if any; a full disk causes only a warning."""
        try:
            self._collect()
        except DiskFull as error:
            newest = "there is none" if self._newest is None else f"the newest is step {self._newest}"
            warn(f"checkpoint skipped: {error}. Training goes on; {newest}; the next save tries again")

    @property
    def directory(self) -> Path:
        return self._directory

    def publish_final(self, step: int, weights: Plain, stopped_early: str = "") -> str:
        """Publish the finished model and return the sha256 of its weights.

        ``stopped_early`` is why its training ended before its last step.
        """
        self.settle()
        final = self._directory / lineage.FINAL
        snapshot = lineage.of_final(step, clone(weights), stopped_early[:1000])
        lineage.fence(self._directory, self.provenance.attempt)
        with self._reporter.within(Phase.DRAIN):
            if final.exists():
                lineage.set_aside(final, "superseded")
            lineage.publish(self._directory, snapshot, self.provenance)
        return weights_sha256(snapshot.state)

    def publish_best(self, step: int, weights: Plain) -> None:
        """Publish the weights of the best evaluation so far, then delete the previous ones."""
        snapshot = lineage.of_best(step, clone(weights))
        with self._reporter.within(Phase.SAVE):
            if (self._directory / snapshot.name).exists():  # reached again after a kill, with the same bits
                lineage.retain_best(self._directory, snapshot.name)
                return
            try:
                lineage.publish(self._directory, snapshot, self.provenance)
            except DiskFull as error:
                warn(f"the best weights so far were not kept: {error}")
                return
            lineage.retain_best(self._directory, snapshot.name)

    def _begin(self, step: int, state: Plain) -> bool:
        """Start writing the state, and return False if this step is already saved."""
        self.settle()
        self._saved_at = time.monotonic()
        if step == self._newest:
            return False
        snapshot = lineage.of_step(step, self._newest, clone(state))
        self._writing = self._pool.submit(self._write, snapshot)
        return True

    def _cost(self, stall_s: float) -> None:
        """Record the cost of a save and report the interval that follows from it."""
        save_schedule, progress, before = (
            self._save_schedule,
            self._reporter.progress,
            self._save_schedule.every_s,
        )
        save_schedule.stalled(stall_s)
        progress.save_every_s, progress.save_stall_s = save_schedule.every_s, save_schedule.stall_s
        if before and save_schedule.every_s and not 2 / 3 < save_schedule.every_s / before < 3 / 2:
            say(
                f"from now on a checkpoint every {save_schedule.every_s:.0f} s:"
                f" one takes {save_schedule.stall_s:.3g} s"
            )

    def _collect(self) -> None:
        writing, self._writing = self._writing, None
        if writing:
            self._newest = self._reporter.progress.checkpoint_step = writing.result()
            self._save_schedule.wrote(self._write_s)
            self._reporter.beat()

    def _write(self, snapshot: Snapshot) -> int:
        """Publish a snapshot, delete old checkpoints and return the step; runs on the writer's thread."""
        began = time.monotonic()
        lineage.fence(self._directory, self.provenance.attempt)
        if not self._is_there(snapshot):
            lineage.publish(self._directory, snapshot, self.provenance)
            say(f"checkpoint of step {snapshot.step} saved")
        lineage.retain(self._directory, self._plan.keep, self._plan.milestone_every)
        self._write_s = time.monotonic() - began
        return snapshot.step

    def _is_there(self, snapshot: Snapshot) -> bool:
        """Return True if the step was published before, with a warning if its bits differ."""
        path = self._directory / snapshot.name
        if not path.exists():
            return False
        try:
            before = verify(path).state_sha256
        except CheckpointInvalid as error:
            warn(f"{path.name}: {error}; it is set aside and written again")
            lineage.set_aside_bad(path)
            return False
        if before != snapshot.digest(snapshot.state):
            warn(
                f"DETERMINISM ALARM: {path.name} was reached again with other bits than those saved before;"
                " the saved ones are kept, and this training is not reproducible"
            )
        return True


def _none_valid(directory: Path, rejected: list[Rejected]) -> str:
    reasons = "; ".join(f"{each.name}: {each.why}" for each in rejected)
    return (
        f"lineage {directory.name}: {len(rejected)} checkpoint(s) and none is valid ({reasons});"
        " nothing was changed; restart from scratch or repair one"
    )
