"""One training in memory: the model, its optimiser and its device, and the training step.

``update(step)`` is a function of the state and the step number only: the batch, the random
draws and the learning rate are derived from the step.  This property makes a resume bitwise exact.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from jobs.checkpoint.signatures import NUMERICS, OPTIMIZER, SEED, signature
from jobs.checkpoint.state import Plain, clone
from jobs.contract import AttemptSpec, Effective
from jobs.contract.plans import TrainingPlan
from jobs.training import batches
from jobs.training.adaptive import Adaptation, check_metrics
from jobs.training.averaging import Averaging, averaging_rate, first_step
from jobs.training.batches import Batch
from jobs.training.device import Device, is_out_of_memory, versions
from jobs.training.failures import DeviceOutOfMemory, InvalidSpec, NonFinite
from jobs.training.feed import Feed
from jobs.training.fitting import FILLED, fewest_parts, rows_of
from jobs.training.lr_schedule import learning_rate
from jobs.training.memory import MIB, Room, keep_freed_memory
from jobs.training.optimizer import adamw
from jobs.training.phases import StepTime
from jobs.training.randomness import seed_all
from jobs.training.ranks import RankGroup, Ranks
from jobs.training.reduction import (
    Loss,
    Reduction,
    peers_named,
    reduction,
    reduction_environment,
    shard_count,
)
from jobs.training.report import warn
from jobs.training.sharding import ShardedReduction, cut_as, gathered, is_part, shard_model, whole
from jobs.training.signals import StopRequests
from jobs.training.switches import Switches
from jobs.training.timing import stopwatch
from jobs.workloads.protocol import Evaluation, Workload

MAX_SKIPPED = 16
"""Most consecutive steps that fp16 may skip because its loss scale is too large; more are a failure."""

REHEARSED = 2
"""Steps of the dry run; the optimiser has state only from the second step on."""

NUMERIC_SWITCHES = (
    "precision",
    "tf32_matmul",
    "tf32_cudnn",
    "deterministic",
    "cudnn_benchmark",
    "compile",
    "optimizer",
    "attention",
    "activation_checkpointing",
    "encode_once",
    "last_position_only",
    "shared_targets",
    "threads",
)
"""Switches on which the rounding of a training depends."""


def _found_late(step: int) -> NonFinite:
    return NonFinite(f"step {step}: loss or gradient not finite; nothing was saved or evaluated since")


def _unless_empty(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a state, or nothing, so that a training without the setting is saved as before."""
    return {name: dict(state)} if state else {}


def _release_host_copy(workload: Workload, feed: Feed) -> None:
    """Let the workload use a data set that was placed on the device; the copy in memory is then free."""
    if feed.source is not workload.source:
        setattr(workload, "source", feed.source)  # noqa: B010 - read-only for all others in the protocol


class Training:
    """The state that a training step changes, and the step itself."""

    def __init__(  # noqa: PLR0913, PLR0917  (the parts of a training)
        self,
        spec: AttemptSpec,
        plan: TrainingPlan,
        workload: Workload,
        device: Device,
        switches: Switches,
        ranks: Ranks = Ranks(),  # noqa: B008  (frozen)
    ) -> None:
        self.spec = spec
        self.ranks = ranks
        self.plan = plan
        self.workload = workload
        self.device = device
        self.switches = switches
        torch.autograd.set_detect_anomaly(switches.profile.anomaly_detection)
        keep_freed_memory()
        self.micro_batch = self._first_micro_batch()
        self._halved = False
        self.advice: tuple[str, ...] = ()
        """Advice to the user on how to make this training faster, one line each."""
        self.best: float | None = None
        self.evaluated: int | None = None
        self.adaptation = Adaptation(plan)
        workload.model.to(device.torch_device)
        self._reduction = self._begin_reduction()
        self.averaging = Averaging(plan, workload.model)
        self._parameters = list(workload.model.parameters())
        self._skipped = 0
        self._stopwatch = stopwatch(device.torch_device)
        self._began = 0.0
        self._steps_since = 0
        self.gradient_norm: float | None = None
        """The gradient norm before clipping, of the last step that the CPU waited for."""
        self._first_bad = torch.full(
            (1,), -1, device=device.torch_device
        )  # the first step that is not finite
        self.feed = Feed(workload.source, switches, device, plan.steps)
        _release_host_copy(workload, self.feed)
        self._begin_optimizer()
        self._tell()

    def _begin_reduction(self) -> Reduction | None:
        """Return how gradients are reduced; a model that is sharded is cut here."""
        ranks, workload, seed = self.ranks, self.workload, self.spec.seed
        if not (isinstance(ranks, RankGroup) and ranks.parallel.sharded):
            return reduction(ranks, seed, workload.loss_sum, workload.model)
        if self.plan.swa or self.plan.ema:
            name = "swa" if self.plan.swa else "ema"
            raise InvalidSpec(
                f"workload.{name}: not with parallel.sharded: no process has whole weights to average"
            )
        shard_model(workload.model, ranks, self.device.torch_device, self.device.precision)
        return ShardedReduction(ranks, seed, workload.loss_sum)

    @property
    def is_sharded(self) -> bool:
        """Return True if this process holds a part of the model."""
        return isinstance(self._reduction, ShardedReduction)

    def _begin_optimizer(self) -> None:
        self._optimizer = adamw(self.workload.parameter_groups(), self.switches)
        self._begin_scaler({})
        self._verify_flags()

    def _begin_scaler(self, state: Mapping[str, Any]) -> None:
        """Create a gradient scaler with the given state; a new one has no record of the current step."""
        kind = self.device.torch_device.type
        self._scaler = torch.amp.GradScaler(kind, enabled=self.device.precision == "fp16")
        if state:
            self._scaler.load_state_dict(dict(state))

    # --- A step

    def update(self, step: int) -> tuple[float | None, StepTime | None]:
        """Do one training step, and return its loss and the time taken.

        Both are None if the CPU does not wait for the device at this step.  The time covers all
        steps since the CPU last waited.

        Raises:
            NonFinite: A loss or gradient of this step, or since the CPU last read them, is not finite.
            DeviceOutOfMemory: A micro-batch of one row does not fit.
        """
        if not self._steps_since:
            self._began = time.perf_counter()
        self._steps_since += 1
        seed_all(self.spec.seed, step)
        with self._stopwatch.within("data"):
            batch = self.feed.take(step)
        found = self._fitting_gradients(batch, step)
        checked = self._is_checked(step)
        loss = self._checked(found, step) if checked else None
        if not checked:
            self._note_finite(found, step)
        self._step_optimizer(step)
        self.averaging.stepped(step + 1)
        self.feed.look_ahead(step + 1)
        return loss, self._took() if checked else None

    def evaluate(
        self, requests: StopRequests, between: Callable[[], None] = lambda: None
    ) -> Evaluation | None:
        """Return the evaluation on the held-out batches, or None if a stop is requested meanwhile.

        The weights are the averaged ones as soon as there are any.  ``between`` is called before each batch.

        Raises:
            NonFinite: A loss or gradient since the CPU last read them was not finite.
        """
        self._read_noted()
        sums: dict[str, Tensor] = {}
        self.workload.model.eval()
        try:
            with self.averaging.in_model():
                for batch in self.feed.held_out(self.plan.eval_batches):
                    if self.ranks.agree(requests.stop)[0] if self.is_sharded else requests.stop:
                        return None
                    between()
                    with self._without_gradients():
                        self._add_scores(batch, sums)
        finally:
            self.workload.model.train()
        return self.workload.judge({name: float(total) for name, total in sums.items()})

    def check_metrics(self) -> None:
        """Evaluate one batch, if the plan watches a metric by its name, so that the name is checked early.

        Raises:
            InvalidSpec: An evaluation has no such metric.
        """
        watching = (self.plan.early_stopping, self.plan.lr_plateau)
        if all(each is None or each.metric is None for each in watching):
            return
        sums: dict[str, Tensor] = {}
        self.workload.model.eval()
        try:
            with self._without_gradients():
                self._add_scores(next(iter(self.feed.held_out(1))), sums)
        finally:
            self.workload.model.train()
        check_metrics(self.plan, self.workload.judge({name: float(total) for name, total in sums.items()}))

    @contextmanager
    def _without_gradients(self) -> Iterator[None]:
        if not self.is_sharded:
            with torch.inference_mode():
                yield
            return
        with torch.no_grad(), peers_named(self.ranks):  # what FSDP2 gathers is used by training steps, too
            yield

    def is_best(self, found: Evaluation) -> bool:
        """Return whether this is the best evaluation so far, and record its value if so."""
        value = found.metrics[found.primary]
        ahead = 0.0 if self.best is None else (value - self.best) * (1 if found.higher_is_better else -1)
        if not math.isfinite(value) or (self.best is not None and ahead <= 0):
            return False
        self.best = value
        return True

    def _add_scores(self, batch: Batch, sums: dict[str, Tensor]) -> None:
        for part in batches.split(batch, self.spec.profile.eval_batch or self.micro_batch):
            with self.device.autocast():
                scores = self.workload.score(self.feed.to_device(part))
            for name, value in scores.items():
                sums[name] = sums[name] + value if name in sums else value

    def rehearse(self) -> None:
        """Do two steps and undo them, so that errors and lack of memory appear before the training.

        Raises:
            InvalidSpec: A parameter, a buffer or a tensor of the batch is on the wrong device.
                Or an operation has no deterministic form.
        """
        with self._undone():
            self.switches.applied("dry_run", verified=True)
            try:
                for step in range(REHEARSED):
                    self._rehearse(step)
            except RuntimeError as error:
                if "deterministic" not in str(error):
                    raise
                first_line = str(error).splitlines()[0]
                raise InvalidSpec(f"{first_line} Set deterministic: false, or change the model") from error

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Put weights and optimiser back as they were, after the steps within the context."""
        held = self.workload.model.state_dict()
        before = {name: each.clone() for name, each in held.items()} if self.is_sharded else clone(dict(held))
        try:
            yield
        finally:
            self.workload.model.load_state_dict(before)
            self._begin_optimizer()
            self._stopwatch = stopwatch(self._where)

    def fit(self, room: Room) -> None:
        """Set the micro-batch to the largest equal part of the batch that fits, by steps that are undone.

        Raises:
            DeviceOutOfMemory: A micro-batch of one row does not fit.
        """
        with self._undone():
            self._rehearse(0)  # halves if need be; the optimiser has its state from here on
            batch, size = self.feed.source.batch(0), self.rows_together
            most = -(-size // self.micro_batch)
            while most < size and not self._fits(batch, rows_of(size, most), room):
                most = min(2 * most, size)
            parts = fewest_parts(most, lambda count: self._fits(batch, rows_of(size, count), room))
            rows = self.micro_batch = rows_of(size, parts)
            self._fits(batch, rows, room)
        self._halved = False
        peak, capacity = (f"{each / MIB:,.0f}" for each in (room.peak_bytes(), room.capacity_bytes))
        self.switches.chosen("micro_batch", rows, f"{rows} of {size} rows take {peak} of {capacity} MiB")

    def _fits(self, batch: Batch, rows: int, room: Room) -> bool:
        """Return True if a step with a micro-batch of so many rows leaves a part of the memory free."""
        self.micro_batch = rows
        room.begin()
        seed_all(self.spec.seed, 0)
        if isinstance(self._try_gradients(batch, 0), str):
            self._free_gradients()
            return False
        self._step_optimizer(0)
        fills = room.peak_bytes() > FILLED * room.capacity_bytes
        return not self.ranks.agree(fills)[0]

    def take_rows(self, rows: int) -> None:
        """Use the micro-batch with which this lineage began."""
        self.micro_batch = rows
        self.switches.chosen("micro_batch", rows, "as this lineage began")

    def _rehearse(self, step: int) -> None:
        seed_all(self.spec.seed, step)
        batch = self.feed.source.batch(step)
        self._check_devices(batch)
        self._fitting_gradients(batch, step)
        self._step_optimizer(step)

    def _check_devices(self, batch: Batch) -> None:
        """Check that everything that a step computes with is on the device.

        Raises:
            InvalidSpec: A parameter, a buffer or a tensor of the batch is elsewhere.
        """
        model = self.workload.model
        here = self.feed.to_device(next(batches.split(batch, 1)))
        as_it_is = self.feed.to_device(here) is here
        needed = self.spec.profile.transfer == "needed"
        self.switches.applied("transfer", verified=as_it_is == needed)
        parts = {
            "parameters": model.named_parameters(),
            "buffers": model.named_buffers(),
            "tensors of the batch": here.items(),
        }
        for what, tensors in parts.items():
            wrong = [f"{name} ({tensor.device})" for name, tensor in tensors if tensor.device != self._where]
            if wrong:
                raise InvalidSpec(f"{what} {', '.join(wrong[:3])} are not on {self._where}")

    @property
    def _where(self) -> torch.device:
        return self.device.torch_device

    def _fitting_gradients(self, batch: Batch, step: int) -> Tensor:
        """Return loss and gradient norm; the micro-batch is halved until it fits into memory."""
        while True:
            problem = self._try_gradients(batch, step)
            if isinstance(problem, Tensor):
                return problem
            self._halve(problem)  # outside the except block, which keeps the failed attempt's tensors alive
            seed_all(self.spec.seed, step)

    def _try_gradients(self, batch: Batch, step: int) -> Tensor | str:
        """Return loss and gradient norm, or the text of the out-of-memory error."""
        try:
            return self._gradients(batch, step)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                return str(error).splitlines()[0]
            if "returned nan values" in str(error):  # anomaly detection, which checks before the loop does
                raise NonFinite(f"{str(error).splitlines()[0]} The weights were not updated") from error
            raise

    def _free_gradients(self) -> None:
        """Give up a step that did not fit, with the memory that it took."""
        self._optimizer.zero_grad(set_to_none=True)
        self._begin_scaler(self._scaler.state_dict())  # unscaling is allowed once a step
        if self.device.torch_device.type == "cuda":
            torch.cuda.empty_cache()

    def _halve(self, problem: str) -> None:
        self._free_gradients()
        if self.micro_batch == 1:
            raise DeviceOutOfMemory(f"{self.device.name}: not even one row fits: {problem}")
        before, self.micro_batch = self.micro_batch, -(-self.micro_batch // 2)
        self._halved = True
        self.switches.fell_back("micro_batch", self.micro_batch, f"{before} rows did not fit: {problem}")
        warn(
            f"out of memory with {before} rows; going on with {self.micro_batch} at the same batch: {problem}"
        )

    def _gradients(self, batch: Batch, step: int) -> Tensor:
        """Compute the gradients of a batch, clip them, and return loss and norm on the device.

        The loss sum of every micro-batch is divided by the number of items in the whole batch.  A mean
        of means would give a smaller last micro-batch the wrong weight.
        """
        self._optimizer.zero_grad(set_to_none=True)
        accumulate = partial(self._accumulate, self.workload.count(batch))
        if self._reduction is None:
            loss = accumulate(batch, self.workload.loss_sum)
        else:
            loss = self._reduction.gradients(batch, step, accumulate)
        with self._stopwatch.within("optimizer"):
            self._scaler.unscale_(self._optimizer)
            norm = whole(clip_grad_norm_(self._parameters, self.plan.grad_clip))
        return torch.stack([loss.float(), norm.float()])

    def _accumulate(
        self,
        count: int,
        rows: Batch,
        loss_sum: Loss,
        quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Tensor:
        """Add the gradients of some rows, in micro-batches, and return their part of the loss.

        ``count`` is the number of items in the whole batch; ``quiet`` is entered for all micro-batches but
        the last one.
        """
        loss = torch.zeros((), device=self.device.torch_device)
        parts = list(batches.split(rows, self.micro_batch))
        for part in parts:
            with self._stopwatch.within("transfer"):
                here = self.feed.to_device(part)
            with nullcontext() if part is parts[-1] else quiet():
                with self._stopwatch.within("forward"), self.device.autocast():
                    share = loss_sum(here) / count
                with self._stopwatch.within("backward"):
                    self._scaler.scale(share).backward()
            loss += share.detach()
        return loss

    def _is_checked(self, step: int) -> bool:
        done = step + 1
        every = self.spec.profile.host_checks_every
        return done % every == 0 or done % self.plan.log_every == 0 or done >= self.plan.steps

    def _checked(self, found: Tensor, step: int) -> float:
        """Wait for loss and gradient norm, check that they are finite, and return the loss."""
        loss, norm, noted = torch.cat([found.double(), self._first_bad.double()]).tolist()
        if noted >= 0:
            raise _found_late(int(noted))
        may_skip = self._scaler.is_enabled() and math.isfinite(loss)
        self._skipped = 0 if math.isfinite(norm) else self._skipped + 1
        self.gradient_norm = norm
        if math.isfinite(loss) and (math.isfinite(norm) or (may_skip and self._skipped <= MAX_SKIPPED)):
            return float(loss)
        raise NonFinite(f"step {step}: loss {loss:g}, gradient norm {norm:g}; the weights were not updated")

    def _note_finite(self, found: Tensor, step: int) -> None:
        """Record on the device whether loss and norm are finite, without waiting for the device.

        A device-side assertion is not used, because it destroys the CUDA context.  Every later call
        would fail with an error that does not name the cause.
        """
        watched = found[:1] if self._scaler.is_enabled() else found
        is_first = (self._first_bad < 0) & ~torch.isfinite(watched).all()
        self._first_bad = torch.where(is_first, step, self._first_bad)

    def _read_noted(self) -> None:
        """Wait for the device if steps were taken since the CPU last read loss and norm.

        Raises:
            NonFinite: The loss or gradient of one of these steps was not finite.
        """
        noted = int(self._first_bad.item()) if self._steps_since else -1
        if noted >= 0:
            raise _found_late(noted)

    def _step_optimizer(self, step: int) -> None:
        with self._stopwatch.within("optimizer"):
            rate = self.learning_rate(step)
            for group in self._optimizer.param_groups:
                group["lr"] = rate * group.get("share", 1.0)
            self._scaler.step(self._optimizer)
            self._scaler.update()

    def _took(self) -> StepTime:
        steps, self._steps_since = self._steps_since, 0
        seconds = time.perf_counter() - self._began
        return StepTime(self.workload.items_per_step * steps, seconds, self._stopwatch.take(), steps)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate that the update of a step uses."""
        plan, factor = self.plan, self.adaptation.rate_factor
        rate = factor * learning_rate(plan, step)
        if plan.swa is None:
            return rate
        return averaging_rate(plan, step, rate, factor * learning_rate(plan, first_step(plan, plan.swa)))

    # --- The state between two steps

    def state(self, step: int) -> Plain:
        """Return everything that a resume needs, without copying it; all processes call this.

        Of a sharded model, the process with rank 0 gets the whole tensors.

        Raises:
            NonFinite: A loss or gradient since the CPU last read them was not finite; the state is invalid.
        """
        self._read_noted()
        scaler = {"scaler": self._scaler.state_dict()} if self._scaler.is_enabled() else {}
        return {
            "step": step,
            "model": self._gathered(dict(self.workload.model.state_dict())),
            "optimizer": self._gathered(self._optimizer.state_dict()),
            "micro_batch": self.micro_batch,
            "best": self.best,
            "evaluated": self.evaluated,
            **_unless_empty("adaptation", self.adaptation.state()),
            **_unless_empty("averaged", self.averaging.state()),
            **({"halved": True} if self._halved else {}),
            **scaler,
        }

    def replicated(self) -> Iterator[Tensor]:
        """Yield all that the processes of an attempt must hold alike: weights and the optimiser's state."""
        held = [*self._parameters, *self.averaging.tensors()]
        for state in self._optimizer.state.values():
            held += (value for value in state.values() if isinstance(value, Tensor))
        yield from (tensor for tensor in held if not is_part(tensor))

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weights that are published: the averaged ones as soon as there are any.

        All processes call this, as ``state``.
        """
        weights: Mapping[str, Tensor] = self._gathered(dict(self.averaging.weights()))
        return weights

    def _gathered(self, state: Plain) -> Plain:
        if not self.is_sharded:
            return state
        with peers_named(self.ranks):
            return gathered(state, keeps=self.ranks.leads)

    def load(self, state: Plain) -> None:
        """Load a saved state, but keep the hyper-parameters and flags of this spec.

        The hyper-parameters and flags are written into the saved state before it is loaded.  A
        correction after loading would leave step counters on the wrong device if the fused flag has
        changed.  A micro-batch that was halved because of too little memory stays halved.
        """
        optimizer = state["optimizer"]
        for saved, ours in zip(optimizer["param_groups"], self._optimizer.param_groups, strict=True):
            saved.update({key: value for key, value in ours.items() if key != "params"})
        self.workload.model.load_state_dict(self.cut_model(state["model"]))
        self._optimizer.load_state_dict({**optimizer, "state": self._cut_moments(optimizer["state"])})
        if self._scaler.is_enabled() and "scaler" in state:
            self._begin_scaler(state["scaler"])
        self.best, self.evaluated = state.get("best"), state.get("evaluated")
        self.adaptation.load(state.get("adaptation", {}))
        self.averaging.load(state.get("averaged", {}), state["step"])
        rows = state.get("micro_batch", self.micro_batch)
        if state.get("halved") and rows < self.micro_batch:
            self.micro_batch, self._halved = rows, True
            self.switches.fell_back("micro_batch", rows, "more did not fit before the checkpoint")

    def cut_model(self, saved: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return saved weights, of a sharded model the part of this process."""
        if not self.is_sharded:
            return saved
        own = self.workload.model.state_dict()
        return {name: cut_as(value, own.get(name)) for name, value in saved.items()}

    def _cut_moments(self, saved: Mapping[int, Plain]) -> Mapping[int, Plain]:
        """Return the saved state of the optimiser, of a sharded model the part of this process."""
        if not self.is_sharded:
            return saved
        own = [each for group in self._optimizer.param_groups for each in group["params"]]
        return {
            number: {name: cut_as(value, own[number]) for name, value in moments.items()}
            for number, moments in saved.items()
        }

    # --- What it is

    @property
    def signatures(self) -> Mapping[str, str]:
        """The signatures of ``jobs.checkpoint.signatures``, from the settings in force."""
        names = [group["param_names"] for group in self._optimizer.param_groups]
        return {
            **self.workload.signatures,
            OPTIMIZER: signature([type(self._optimizer).__name__, names]),
            SEED: signature(self.spec.seed),
            NUMERICS: signature(self.environment()),
        }

    def environment(self) -> dict[str, str]:
        """Return the settings and versions on which the rounding of this training depends."""
        report = self.switches.report()
        in_force = {name: report[name].applied for name in NUMERIC_SWITCHES}
        return (
            versions()
            | reduction_environment(self.spec.parallel)
            | {
                "device": self.device.name,
                "micro_batch": str(self.micro_batch),
                **{name: value for name, value in in_force.items() if value is not None},
            }
        )

    def effective(self) -> Effective:
        """Return the settings in force, for ``effective.json``."""
        device = self.device
        return Effective(
            device=str(device.torch_device),
            device_name=device.name,
            precision=device.precision,
            threads=device.threads,
            micro_batch=self.micro_batch,
            accumulation=-(-self.plan.batch_size // self.micro_batch // self.ranks.world),
            processes=self.ranks.world,
            compile_graphs=device.graphs,
            parameters=sum(p.numel() for p in self._parameters),
            train_items=self.workload.train_items,
            steps_per_epoch=self.workload.steps_per_epoch,
            switches=dict(self.switches.report()),
            versions=versions(),
            fallbacks=self.switches.fallbacks,
            advice=self.advice,
        )

    @property
    def rows_together(self) -> int:
        """The most rows that one forward pass can have: those of a shard."""
        return rows_of(self.plan.batch_size, shard_count(self.ranks))

    def _first_micro_batch(self) -> int:
        wanted, batch = self.spec.profile.micro_batch, self.rows_together
        rows = batches.automatic_size(batch) if wanted == "auto" else min(wanted or batch, batch)
        self.switches.applied("micro_batch", rows, verified=True)
        return rows

    def _tell(self) -> None:
        """Record the switches that take effect in the training loop and its steps."""
        for name in ("host_checks_every", "eval_batch", "async_save", "dry_run"):
            self.switches.applied(name)
        looks = torch.is_anomaly_enabled() == self.switches.profile.anomaly_detection
        self.switches.applied("anomaly_detection", verified=looks)
        self.switches.applied("memory_log")
        if self.spec.profile.trace is not None:
            self.switches.applied("trace")
        self.switches.applied("memory_cleanup_every")
        if self.spec.profile.compile == "off":
            self.switches.applied("compile", verified=True)

    def _verify_flags(self) -> None:
        """Verify that the optimiser has the requested flags."""
        wanted, group = self.switches.profile.optimizer, self._optimizer.param_groups[0]
        flags = {"loop": (False, False), "foreach": (True, False), "fused": (False, True)}[wanted]
        self.switches.applied("optimizer", verified=(bool(group["foreach"]), bool(group["fused"])) == flags)
