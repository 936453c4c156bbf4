"""Makes a Lightning training resumable in one line: ``Attached().fit(trainer, model, loader)``.

Lightning saves the model, the optimiser, the schedule and its own counters, but not the position
in the data: a shuffling DataLoader begins a new order after a resume.  ``Attached.loader`` returns a
DataLoader whose batches are a function of (seed, batch number).  With it, and on one device, a
training that was killed and resumed is bit-identical to an uninterrupted one; with your own
DataLoader it is not.  The runner does not know the checkpoints of ``ModelCheckpoint``: disable
them with ``enable_checkpointing=False``.  Of several processes, each takes its part of a batch, and all save
and stop after the same step.  Tested with Lightning 2.6.
"""
# ruff: noqa: SLF001 - Lightning does not say elsewhere where its loops are

from collections.abc import Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from gpu_job_runner.attach import STOPPED, Attempt, apply_profile, attach

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_job_runner.profiled import Applied

FILE = "lightning.ckpt"

OF_STEPS = frozenset({"loss", "items", "step", "time"})
"""Names in the rows of single steps, which nothing else may have that is logged."""


class Attached(pl.Callback):
    """A callback that resumes, seeds, reports, saves and stops: ``Trainer(callbacks=[attached])``."""

    def __init__(self, job: Attempt | None = None) -> None:
        self.job = job or attach()
        self.batches = 0
        """Batches that are finished, over all epochs."""
        self._metrics: dict[str, Any] = {}
        self._stops = self._saves = False

    def fit(
        self,
        trainer: pl.Trainer,
        model: pl.LightningModule,
        train_dataloaders: DataLoader[Any],
        val_dataloaders: Any = None,
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
        if self.job.world_size > 1:
            trainer.strategy.setup_environment()  # connects the processes, which agree on the checkpoint
        trainer.fit(model, loader, val_dataloaders, ckpt_path=self.newest())

    def newest(self) -> str | None:
        """Return the newest valid checkpoint as ``ckpt_path`` for ``Trainer.fit``; None if there is none."""
        found: list[Path] = []
        self.job.restore(found.append)
        return str(found[0] / FILE) if found else None

    def loader(self, dataset: Dataset[Any], batch_size: int, **rest: Any) -> "Loader":
        """Return a shuffling DataLoader that resumes mid-epoch; ``rest`` is passed to ``DataLoader``.

        ``batch_size`` is that of one process.
        """
        rows = _Rows(self, dataset, batch_size)
        return Loader(dataset, batch_size=batch_size, sampler=rows, drop_last=True, **rest)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that Lightning stores in its checkpoint."""
        return {"batches": self.batches, "metrics": self._metrics}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.batches = state_dict["batches"]
        self._metrics = state_dict.get("metrics", {})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the total number of steps, and take SIGTERM back from Lightning, which would end the run."""
        del pl_module
        self.job.take_signals()
        trainer._signal_connector.received_sigterm = False  # the job has heard it, too
        trainer.callback_metrics.update(self._metrics)  # a schedule may watch one of before the resume
        total = trainer.estimated_stepping_batches
        if total != float("inf"):
            self.job.reports.known["total_steps"] = int(total)

    def on_train_batch_start(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Seed the generators for this batch number."""
        del trainer, pl_module, batch, batch_idx
        self.job.seed(self.batches)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Report, save and stop, only between optimiser steps, because gradients are not saved.

        A resume would not make up for a validation or an end of an epoch that is due now, so they come first.
        """
        del pl_module, batch, batch_idx
        loop = trainer.fit_loop
        loop._restarting = False  # else Lightning updates no plateau schedule at the end of this epoch
        self.batches += 1
        if trainer.global_step == self.job.step:
            return
        self.job.end_step(trainer.global_step, **_loss(outputs))
        self._stops, save = self.job.agree()
        self._saves = self._saves or save
        epoch = loop.epoch_loop
        if not (epoch._num_ready_batches_reached() or epoch._should_check_val_fx(loop._data_fetcher)):
            self._save_or_stop(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report what it has logged; save and stop where a validation within an epoch was due first."""
        del pl_module
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        self._report(trainer._logger_connector.metrics["callback"])
        if not trainer.fit_loop.epoch_loop._num_ready_batches_reached():
            self._save_or_stop(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the means over the last epoch; save and stop where its end was due first."""
        del pl_module
        self._report(_of_epoch(trainer))
        loop = trainer.fit_loop.epoch_loop
        loop._restarting = False  # an epoch that only begins resumes nothing
        loop.reset()  # as Lightning does next: the epoch to save is this one, of which no batch is done
        self._save_or_stop(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the means over the last epoch, and save the last step."""
        del pl_module
        self._report(_of_epoch(trainer))
        if self.job.reports.known.get("checkpoint_step") != self.job.step:
            self.job.stopping = True  # this is the last save, so a full disk is an error
            self._save(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report ``completed`` with the logged metrics."""
        del pl_module
        self.job.finish(metrics=_logged(trainer))

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Report why the training ends."""
        del trainer, pl_module
        self.job.__exit__(type(exception), exception, exception.__traceback__)

    def _report(self, logged: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in logged.items() if name not in OF_STEPS}
        self.job.reports.numbers(self.job.step, numbers)

    def _save_or_stop(self, trainer: pl.Trainer) -> None:
        if self._saves:
            self._saves = False
            self._save(trainer)
        if self._stops and not self._is_last(trainer):
            self.job.leave(STOPPED, f"asked to stop; step {self.job.step} is saved")

    def _save(self, trainer: pl.Trainer) -> None:
        self._metrics = {name: value.detach().cpu() for name, value in trainer.callback_metrics.items()}

        def write(directory: "Path") -> None:
            trainer.save_checkpoint(directory / FILE)

        self.job.save_together(write, every_process=True)  # of a sharded model, each process has a part

    @staticmethod
    def _is_last(trainer: pl.Trainer) -> bool:
        return trainer.global_step >= trainer.estimated_stepping_batches


def profile_arguments(applied: "Applied | None" = None) -> dict[str, Any]:
    """Return the job's profile as arguments of ``Trainer(**profile_arguments(), ...)``.

    Loaders and compilation are not the trainer's: ``applied.loader()``, ``applied.compile(model)``.  Without
    a runner it is nothing.
    """
    applied = applied or apply_profile()
    if not applied.profile:
        return {}
    applied.given({"anomaly_detection": applied.profile["anomaly_detection"]})
    return {
        "precision": {"bf16": "bf16-mixed", "fp16": "16-mixed"}.get(applied.precision, "32-true"),
        "benchmark": applied.profile["cudnn_benchmark"],
        "deterministic": applied.profile["deterministic"],
        "detect_anomaly": applied.profile["anomaly_detection"],
    }


class Loader(DataLoader[Any]):
    """A DataLoader that Lightning treats as resumable; its sampler makes it so."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict: the order of the batches needs no state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: there is no state."""


class _Rows(DistributedSampler[Any]):
    """The rows of this process in the remaining batches of the current epoch.

    Lightning leaves a ``DistributedSampler`` as it is.
    """

    def __init__(self, attached: Attached, dataset: Dataset[Any], size: int) -> None:
        job = attached.job
        super().__init__(dataset, num_replicas=job.world_size, rank=job.rank, shuffle=False, drop_last=True)
        self._attached, self._length, self._size = attached, len(cast("Sized", dataset)), size
        job.rows(0, self._length, size * job.world_size)  # refuses a batch that the data cannot fill
        self._batches = self._length // (size * job.world_size)

    def __len__(self) -> int:
        return self._batches * self._size

    def __iter__(self) -> Iterator[int]:
        job, first = self._attached.job, self._attached.batches
        for number in range(first, (first // self._batches + 1) * self._batches):
            rows = job.rows(number, self._length, self._size * job.world_size)
            yield from rows[job.rank :: job.world_size]


def _logged(trainer: pl.Trainer) -> dict[str, float]:
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def _of_epoch(trainer: pl.Trainer) -> dict[str, Any]:
    """Return what this process has logged of training epochs, with the values at the end of the last one.

    Lightning makes them after the last hook of an epoch.
    """
    names = {each.meta.name for each in trainer.fit_loop.epoch_loop._results.values() if each.meta.on_epoch}
    return {name: value for name, value in trainer.callback_metrics.items() if name in names}


def _loss(outputs: Any) -> dict[str, float]:
    loss = outputs.get("loss") if isinstance(outputs, dict) else None
    return {} if loss is None else {"loss": float(loss)}
