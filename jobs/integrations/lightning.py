"""Makes a Lightning training resumable by one callback: ``Attached``.

Lightning saves model, optimiser, schedule and its own counters, but not where in the data it
was: a shuffling DataLoader begins a new order when it resumes.  Hence ``Attached.loader``,
whose batches are a function of (seed, number of the batch).  With it, and with one device, a
training that was killed ends with the bits of one that was not; with a DataLoader of your
own it does not.  Checkpoints of ``ModelCheckpoint`` are not known to the runner: switch
them off (``enable_checkpointing=False``).  Tried with Lightning 2.6.
"""

from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as pl
from torch.utils.data import DataLoader, Dataset

from jobs.attach import STOPPED, Attempt, attach

if TYPE_CHECKING:
    from pathlib import Path

FILE = "lightning.ckpt"


class Attached(pl.Callback):
    """Resumes, seeds, reports, saves and stops: ``Trainer(callbacks=[attached])``."""

    def __init__(self, job: Attempt | None = None) -> None:
        self.job = job or attach()
        self.batches = 0
        """Batches that are finished, over all epochs."""

    def newest(self) -> str | None:
        """Return what ``Trainer.fit`` takes as ``ckpt_path``: the newest valid checkpoint, None at first."""
        found: list[Path] = []
        self.job.restore(found.append)
        return str(found[0] / FILE) if found else None

    def loader(self, dataset: Dataset[Any], batch_size: int, **rest: Any) -> "Loader":  # noqa: ANN401
        """Return a shuffling DataLoader that goes on where the training was; ``rest`` is DataLoader's."""
        return Loader(dataset, batch_sampler=_Batches(self, len(cast("Sized", dataset)), batch_size), **rest)

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning keeps in its checkpoint."""
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.batches = state_dict["batches"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say how long it will take."""
        del pl_module
        total = trainer.estimated_stepping_batches
        if total != float("inf"):
            self.job.reports.known["total_steps"] = int(total)

    def on_train_batch_start(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Make what is random a function of the batch's number."""
        del trainer, pl_module, batch, batch_idx
        self.job.seed(self.batches)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Report, save and stop; only between optimiser steps, for gradients are not saved."""
        del pl_module, batch, batch_idx
        self.batches += 1
        if trainer.global_step == self.job.step:
            return
        self.job.end_step(trainer.global_step, **_loss(outputs))
        if self.job.wants_save():
            self._save(trainer)
        if self.job.stopping and not self._is_last(trainer):
            self.job.leave(STOPPED, f"asked to stop; step {self.job.step} is saved")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the end."""
        del pl_module
        if self.job.reports.known.get("checkpoint_step") != self.job.step:
            self.job.stopping = True  # no later save could make up for this one
            self._save(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say that it is completed, with the metrics that were logged."""
        del pl_module
        self.job.finish(metrics={name: float(value) for name, value in trainer.callback_metrics.items()})

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Say why it ends."""
        del trainer, pl_module
        self.job.__exit__(type(exception), exception, exception.__traceback__)

    def _save(self, trainer: pl.Trainer) -> None:
        self.job.save(lambda directory: trainer.save_checkpoint(directory / FILE))

    @staticmethod
    def _is_last(trainer: pl.Trainer) -> bool:
        return trainer.global_step >= trainer.estimated_stepping_batches


class Loader(DataLoader[Any]):
    """A DataLoader that Lightning takes for resumable, as its batch sampler makes it."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the order of the batches needs no state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take nothing."""


class _Batches:
    """The rest of the present epoch: iterated once for every epoch, and once more after a resume."""

    def __init__(self, attached: Attached, length: int, size: int) -> None:
        self._attached, self._length, self._size = attached, length, size

    def __len__(self) -> int:
        return self._length // self._size

    def __iter__(self) -> Iterator[list[int]]:
        first = self._attached.batches
        for number in range(first, (first // len(self) + 1) * len(self)):
            yield self._attached.job.rows(number, self._length, self._size)


def _loss(outputs: Any) -> dict[str, float]:  # noqa: ANN401  (whatever training_step returns)
    loss = outputs.get("loss") if isinstance(outputs, dict) else None
    return {} if loss is None else {"loss": float(loss)}
