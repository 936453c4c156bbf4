"""Makes a Lightning training resumable in one line: ``Attached().fit(trainer, model, loader)``.

Lightning saves the model, the optimiser, the schedule and its own counters, but not the position
in the data: a shuffling DataLoader begins a new order after a resume.  ``Attached.loader`` returns a
DataLoader whose batches are a function of (seed, batch number).  With it, and on one device, a
training that was killed and resumed is bit-identical to an uninterrupted one; with your own
DataLoader it is not.  The runner does not know the checkpoints of ``ModelCheckpoint``: disable
them with ``enable_checkpointing=False``.  Tested with Lightning 2.6.
"""

from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as pl
from torch.utils.data import DataLoader, Dataset, RandomSampler

from jobs.attach import STOPPED, Attempt, attach

if TYPE_CHECKING:
    from pathlib import Path

FILE = "lightning.ckpt"


class Attached(pl.Callback):
    """A callback that resumes, seeds, reports, saves and stops: ``Trainer(callbacks=[attached])``."""

    def __init__(self, job: Attempt | None = None) -> None:
        self.job = job or attach()
        self.batches = 0
        """Batches that are finished, over all epochs."""

    def fit(
        self,
        trainer: pl.Trainer,
        model: pl.LightningModule,
        train_dataloaders: DataLoader[Any],
        val_dataloaders: Any = None,  # noqa: ANN401  whatever Lightning accepts
    ) -> None:
        """Train as ``trainer.fit`` does, from the newest valid checkpoint.

        A shuffling DataLoader is replaced by one with the same settings that resumes within an epoch
        and leaves out the last, smaller batch; any other is used as it is.
        """
        cast("list[pl.Callback]", trainer.callbacks).append(self)
        loader = train_dataloaders
        if isinstance(loader.sampler, RandomSampler) and loader.batch_size is not None:
            loader = self.loader(
                loader.dataset,
                loader.batch_size,
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                pin_memory=loader.pin_memory,
                worker_init_fn=loader.worker_init_fn,
                persistent_workers=loader.persistent_workers,
                prefetch_factor=loader.prefetch_factor,
            )
        trainer.fit(model, loader, val_dataloaders, ckpt_path=self.newest())

    def newest(self) -> str | None:
        """Return the newest valid checkpoint as ``ckpt_path`` for ``Trainer.fit``; None if there is none."""
        found: list[Path] = []
        self.job.restore(found.append)
        return str(found[0] / FILE) if found else None

    def loader(self, dataset: Dataset[Any], batch_size: int, **rest: Any) -> "Loader":  # noqa: ANN401
        """Return a shuffling DataLoader that resumes mid-epoch; ``rest`` is passed to ``DataLoader``."""
        return Loader(dataset, batch_sampler=_Batches(self, len(cast("Sized", dataset)), batch_size), **rest)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that Lightning stores in its checkpoint."""
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.batches = state_dict["batches"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the total number of steps."""
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
        """Seed the generators for this batch number."""
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
        """Report, save and stop, only between optimiser steps, because gradients are not saved."""
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
        """Save the last step."""
        del pl_module
        if self.job.reports.known.get("checkpoint_step") != self.job.step:
            self.job.stopping = True  # this is the last save, so a full disk is an error
            self._save(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report ``completed`` with the logged metrics."""
        del pl_module
        self.job.finish(metrics={name: float(value) for name, value in trainer.callback_metrics.items()})

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Report why the training ends."""
        del trainer, pl_module
        self.job.__exit__(type(exception), exception, exception.__traceback__)

    def _save(self, trainer: pl.Trainer) -> None:
        self.job.save(lambda directory: trainer.save_checkpoint(directory / FILE))

    @staticmethod
    def _is_last(trainer: pl.Trainer) -> bool:
        return trainer.global_step >= trainer.estimated_stepping_batches


class Loader(DataLoader[Any]):
    """A DataLoader that Lightning treats as resumable; its batch sampler makes it so."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict: the order of the batches needs no state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: there is no state."""


class _Batches:
    """The remaining batches of the current epoch; iterated once per epoch, and again after a resume."""

    def __init__(self, attached: Attached, length: int, size: int) -> None:
        self._attached, self._length, self._size = attached, length, size

    def __len__(self) -> int:
        return self._length // self._size

    def __iter__(self) -> Iterator[list[int]]:
        first = self._attached.batches
        for number in range(first, (first // len(self) + 1) * len(self)):
            yield self._attached.job.rows(number, self._length, self._size)


def _loss(outputs: Any) -> dict[str, float]:  # noqa: ANN401  (any value that training_step returns)
    loss = outputs.get("loss") if isinstance(outputs, dict) else None
    return {} if loss is None else {"loss": float(loss)}
