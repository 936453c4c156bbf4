"""The training loop, and the work between its steps.

A training may be killed at any moment and resumes with bitwise identical results.  The step is a pure
function of the state (``jobs.training.step``), and a checkpoint is either complete or absent
(``jobs.checkpoint.directory``).  The finished model is published before the process exits with success.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Final

from jobs.checkpoint.directory import Provenance, locked
from jobs.checkpoint.exported import check_names, export
from jobs.checkpoint.initial import load_initial_weights
from jobs.checkpoint.saver import Checkpoints, ResumePoint
from jobs.checkpoint.signatures import differences
from jobs.contract import BILLION, AttemptSpec, Phase, Program, RunPaths, excess_workers
from jobs.contract.plans import TrainingPlan
from jobs.training.device import out_of_memory_named, prepare
from jobs.training.epochs import EpochLog
from jobs.training.failures import InvalidSpec, Stopped
from jobs.training.fitting import keep_rows, kept_rows, larger_rows
from jobs.training.launcher import own_rank
from jobs.training.memory import MIB, MemoryLog, room
from jobs.training.ranks import COMPARE_EVERY, Ranks, joined
from jobs.training.report import Reporter, say, warn
from jobs.training.signals import StopRequests
from jobs.training.startup import startup_lines
from jobs.training.step import Training
from jobs.training.switches import Switches
from jobs.training.trace import StepTrace
from jobs.workloads.protocol import BuildContext, Evaluation, build

ADVISED_AFTER: Final = 100
"""Steps of an attempt after which it has taken the memory that it needs."""

FRESH: Final = -1
"""Step that the leader tells if there is no checkpoint."""


def run(spec: AttemptSpec, paths: RunPaths, reporter: Reporter, requests: StopRequests) -> None:
    """Run one attempt to its end, after which the finished model is on the disk.

    Raises:
        Failure: Training ended early; each reason has its own subclass.
    """
    lock = locked(paths.lineage_dir, requests, attempt=spec.attempt) if own_rank() == 0 else nullcontext()
    with lock, ExitStack() as group:
        training = _build(spec, paths, reporter, requests, group)
        checkpoints = Checkpoints(
            paths.lineage_dir,
            spec.checkpoint,
            _provenance(training),
            reporter,
            in_background=spec.profile.async_save,
        )
        with checkpoints, out_of_memory_named(training.device):
            if not training.ranks.from_leader(int(_is_finished(training, checkpoints, reporter))):
                _fit(training, paths, reporter, requests)
                _rehearse(training, checkpoints, reporter, requests)
                train(training, checkpoints, reporter, requests)


def train(training: Training, checkpoints: Checkpoints, reporter: Reporter, requests: StopRequests) -> None:
    """Train from the newest checkpoint to the last step, and publish the model."""
    plan = training.plan
    check_names(plan.export, training.averaging.weights())
    memory = MemoryLog(training.spec.profile, training.device.torch_device, training.workload.steps_per_epoch)
    step = began = _resume(training, checkpoints, reporter, requests)
    reporter.begin_tracking(step)
    epochs = EpochLog(_built_in(training.spec).epochs, training.workload.steps_per_epoch, began)
    traced = training.spec.profile.trace if training.ranks.leads else None
    where = training.device.torch_device
    with reporter.within(Phase.TRAIN), StepTrace(traced, reporter.paths, where) as trace:
        training.feed.begin(step)
        while step < plan.steps and training.adaptation.stopped is None:
            if step in training.spec.checkpoint.pauses and step != training.spec.resume_step:
                requests.stop = True
            if _save_and_agree(training, checkpoints, requests, step, began):
                _leave(training, checkpoints, step, began)
            trace.before(step)
            rows = training.micro_batch
            loss, took = training.update(step)
            step += 1
            trace.after(step)
            if training.micro_batch != rows:
                _say_what_fits(training, checkpoints, reporter)
            reporter.stepped(step, loss, took, training.gradient_norm)
            memory.stepped(step, reporter)
            epochs.stepped(step)
            if step == began + ADVISED_AFTER:
                _advise(training, reporter)
            _report(training, checkpoints, reporter, requests)
            checkpoints.poll()
        if _is_evaluated(training, step) and training.evaluated != step:
            _leave(training, checkpoints, step, began)  # a resume repeats the missing last evaluation
        _publish(training, checkpoints, reporter, step)


def _save_and_agree(
    training: Training, checkpoints: Checkpoints, requests: StopRequests, step: int, began: int
) -> bool:
    """Save if it is time to, and return whether to stop; all processes of the attempt do the same."""
    ranks, is_new = training.ranks, step > began
    wanted = is_new and (requests.take_save() or (ranks.leads and checkpoints.due(step)))
    stop, save = ranks.agree(requests.stop, wanted)
    if is_new and (save or step % COMPARE_EVERY == 0):
        ranks.compare(training.replicated, step)
    if not save:
        return stop
    _save(training, checkpoints, step)
    return ranks.agree(requests.stop)[0]


def _save(training: Training, checkpoints: Checkpoints, step: int) -> None:
    """Save the state; all processes of the attempt return when the leader may go on."""
    state = training.state(step)
    if training.ranks.leads:
        checkpoints.save(step, state)
    training.ranks.wait_for_leader()


def _publish(training: Training, checkpoints: Checkpoints, reporter: Reporter, step: int) -> None:
    """Save the last step and publish the model; all processes return when both are on the disk."""
    ranks, state, weights = training.ranks, training.state(step), training.weights()
    ranks.compare(training.replicated, step)
    if ranks.leads:
        checkpoints.save_now(step, state)
        if training.plan.export is not None:  # before the model is published, after which no attempt has work
            say(export(training.plan.export, training.workload, weights, checkpoints.directory))
        early = training.adaptation.stopped if step < training.plan.steps else None
        reporter.progress.stopped_early = early
        reporter.progress.weights_sha256 = checkpoints.publish_final(step, weights, early or "")
        say(f"{reporter.progress.end}: weights sha256 {reporter.progress.weights_sha256}")
    ranks.wait_for_leader()


def _build(
    spec: AttemptSpec, paths: RunPaths, reporter: Reporter, requests: StopRequests, group: ExitStack
) -> Training:
    """Return the training of a spec, with its initial weights; ``group`` connects its processes."""
    _leave_before_work(requests)
    plan, switches = _built_in(spec), Switches(spec.profile)
    device = prepare(spec, switches)
    ranks = group.enter_context(joined(spec, device.torch_device))
    reporter.memory = device.memory_bytes
    with reporter.within(Phase.DATA):
        workload = build(plan, BuildContext(spec.seed, switches, paths.cache))
    plan = plan.with_steps(workload.steps_per_epoch)
    if plan.steps > BILLION:
        raise InvalidSpec(f"workload.epochs: these are {plan.steps:,} steps, more than {BILLION:,}")
    reporter.progress.total_steps = plan.steps
    ranks.meet()
    if ranks.agree(requests.stop)[0]:
        requests.stop = True
    _leave_before_work(requests)
    with out_of_memory_named(device):
        training = Training(spec, plan, workload, device, switches, ranks)
    if excess := excess_workers(spec.profile, spec.cpus):
        warn(excess)
        training.advice += (excess,)
    return training


def _built_in(spec: AttemptSpec) -> TrainingPlan:
    if isinstance(spec.workload, Program):
        raise InvalidSpec("workload: a program is started by the runner itself, not by the trainer")
    return spec.workload


def _fit(training: Training, paths: RunPaths, reporter: Reporter, requests: StopRequests) -> None:
    """Determine the micro-batch of ``auto``: that of the lineage, or the largest that fits on the device."""
    spec, batch_size = training.spec, training.plan.batch_size
    if spec.profile.micro_batch != "auto":
        return
    kept = kept_rows(paths.lineage_dir, batch_size, spec.revision) if training.ranks.leads else None
    if rows := training.ranks.from_leader(kept or 0):
        training.take_rows(rows)
    elif _may_try(training) and (available := room(training.device.torch_device)):
        _leave_before_work(requests)
        with reporter.within(Phase.TRAIN):
            training.fit(available)
        if training.ranks.leads:
            keep_rows(paths.lineage_dir, batch_size, training.micro_batch)


def _may_try(training: Training) -> bool:
    """Return True if a step that does not fit can be given up.

    With ``reduction: fast`` or ``sharded``, the other processes are then in the middle of a sum.
    """
    parallel = training.spec.parallel
    return training.ranks.world == 1 or not (parallel.reduction == "fast" or parallel.sharded)


def _advise(training: Training, reporter: Reporter) -> None:
    """Say whether a larger micro-batch would fit, once the training has taken what it needs."""
    available = room(training.device.torch_device)
    if available is None or not training.ranks.leads:
        return
    rows, batch_size = training.micro_batch, training.rows_together
    peak, capacity = available.peak_bytes(), available.capacity_bytes
    if larger := larger_rows(rows, batch_size, peak, capacity):
        memory = f"{peak / MIB:,.0f} of {capacity / MIB:,.0f} MiB"
        text = (
            f"micro-batches of {rows} of {batch_size} rows take {memory}:"
            f" profile.micro_batch: {larger} would fit; auto, in a new lineage, finds the largest"
        )
        say(f"advice: {text}")
        training.advice += (text,)
        reporter.effective(training.effective())


def _rehearse(
    training: Training, checkpoints: Checkpoints, reporter: Reporter, requests: StopRequests
) -> None:
    """Compile and do the dry run if the profile requests it, and report the settings in force."""
    if training.ranks.agree(requests.stop)[0]:
        requests.stop = True
    _leave_before_work(requests)
    profile, began, compile_s = training.spec.profile, time.monotonic(), None
    compiles = profile.compile != "off"
    if compiles and training.is_sharded:
        compiles = False
        training.switches.fell_back("compile", "off", "a sharded model runs uncompiled")
    if compiles:
        from jobs.training.compilation import compile_model  # noqa: PLC0415 - loads as slowly as torch itself

        with reporter.within(Phase.COMPILE):
            compile_model(training.workload.model, training.switches, training.device, training.rehearse)
        compile_s = time.monotonic() - began
    elif profile.dry_run:
        with reporter.within(Phase.TRAIN):
            training.rehearse()
    training.check_metrics()
    checkpoints.provenance = _provenance(training)
    effective = training.effective()
    reporter.effective(effective)
    item, hardware = training.workload.item, training.device.hardware
    for line in startup_lines(effective, hardware=hardware, item=item, compile_s=compile_s):
        say(line)


def _provenance(training: Training) -> Provenance:
    spec = training.spec
    return Provenance(
        spec.job_id, spec.lineage, spec.attempt, spec.revision, training.signatures, training.environment()
    )


def _say_what_fits(training: Training, checkpoints: Checkpoints, reporter: Reporter) -> None:
    """Report a smaller micro-batch, and include it in the signatures of later checkpoints."""
    checkpoints.provenance = _provenance(training)
    reporter.effective(training.effective())


def _is_finished(training: Training, checkpoints: Checkpoints, reporter: Reporter) -> bool:
    """Return True if an earlier attempt already published the model, so that no work is left."""
    steps, progress = training.plan.steps, reporter.progress
    if training.spec.resume_step is not None or not training.ranks.leads:
        return False
    final = checkpoints.finished(steps)
    if final is None:
        return False
    progress.weights_sha256, progress.step = final.state_sha256, final.step
    progress.stopped_early = final.stopped_early or None
    say(f"the finished model is published already: weights sha256 {progress.weights_sha256}")
    return True


def _resume(training: Training, checkpoints: Checkpoints, reporter: Reporter, requests: StopRequests) -> int:
    """Load the checkpoint to resume from, if any, and return its step or 0."""
    rows, ranks = training.micro_batch, training.ranks
    found = _find(training, checkpoints)
    if found is not None:
        _resume_from(training, found, reporter)
    if training.micro_batch != rows:
        _say_what_fits(training, checkpoints, reporter)
    ranks.meet()  # all have read what they need
    if ranks.leads:
        checkpoints.adopt(found)
    ranks.wait_for_leader()
    reporter.beat()
    if found is None:
        _load_initial(training)
        return 0
    if not checkpoints.has_best():
        training.best = None  # the best weights were later than this step and are set aside now
    if _is_evaluated(training, found.manifest.step) and training.evaluated != found.manifest.step:
        _evaluate(training, checkpoints, reporter, requests)  # a stop came before the evaluation
    return found.manifest.step


def _load_initial(training: Training) -> None:
    """Load the weights that the job begins with, if it names any; a resume has them in its checkpoint.

    Raises:
        InvalidSpec: They are gone, or do not fit the model.
    """
    spec, written = training.spec, training.plan.init_from
    if written is None:
        return
    if spec.init_weights is None:
        raise InvalidSpec(
            f"workload.init_from: {written}: no such weights: none were published, or they were removed"
        )
    model, cut = training.workload.model, training.cut_model
    names = training.plan.init_map
    where = load_initial_weights(Path(spec.init_weights), written, model, cut, names)
    say(f"begins with {where}")


def _find(training: Training, checkpoints: Checkpoints) -> ResumePoint | None:
    """Return the checkpoint to resume from: the leader finds it, and the others read the same one."""
    ranks = training.ranks
    if not ranks.leads:
        step = ranks.from_leader(FRESH)
        return None if step == FRESH else checkpoints.find(step)
    found = checkpoints.find(training.spec.resume_step)
    ranks.from_leader(FRESH if found is None else found.manifest.step)
    return found


def _resume_from(training: Training, found: ResumePoint, reporter: Reporter) -> None:
    step, progress = found.manifest.step, reporter.progress
    if step > training.plan.steps:
        raise InvalidSpec(
            f"the checkpoint is at step {step}, beyond the {training.plan.steps} steps of the spec;"
            " resume from an earlier step or restart from scratch"
        )
    differences(found.manifest.signatures, training.signatures)  # raises before anything is loaded
    training.load(found.state)
    changed = differences(
        found.manifest.signatures, training.signatures
    )  # the loaded state may have a smaller micro-batch
    progress.step = progress.resumed_from = progress.checkpoint_step = step
    progress.rejected = found.rejected
    for rejected in found.rejected:
        warn(f"{rejected.name} was not used: {rejected.why}")
    if changed:
        warn(
            f"other {', '.join(changed)} than when step {step} was saved: the bits will differ from there on"
        )
    say(f"resumed from step {step}")


def _report(training: Training, checkpoints: Checkpoints, reporter: Reporter, requests: StopRequests) -> None:
    """Log and evaluate after the newest step if the plan requires it."""
    plan, progress = training.plan, reporter.progress
    step, last = progress.step, progress.step == plan.steps
    if (last or step % plan.log_every == 0) and progress.loss is not None:
        reporter.log_step(training.learning_rate(step - 1), training.workload.item)
        progress.metrics["loss"] = progress.loss
    if _is_evaluated(training, step):
        _evaluate(training, checkpoints, reporter, requests)


def _is_evaluated(training: Training, step: int) -> bool:
    plan = training.plan
    return plan.eval_every is not None and (step == plan.steps or step % plan.eval_every == 0)


def _evaluate(
    training: Training, checkpoints: Checkpoints, reporter: Reporter, requests: StopRequests
) -> None:
    progress, guard = reporter.progress, checkpoints.guard
    first = training.ranks.leads and guard.saves_before(checkpoints.stall_s)
    if training.ranks.agree(first)[0]:
        _save(training, checkpoints, progress.step)
        first = True
    began = time.monotonic()
    between = _no_save if first else _saving_within(training, checkpoints, progress.step, began)
    progress.evaluation = None
    with reporter.within(Phase.EVAL):
        found = training.evaluate(requests, _telling(reporter, training.plan.eval_batches, between))
    if training.ranks.agree(found is None)[0] or found is None:
        return
    guard.evaluated(time.monotonic() - began)
    training.evaluated = progress.step
    baseline = {f"baseline_{name}": value for name, value in found.baseline.items()}
    progress.metrics |= {**found.details, **found.metrics, **baseline}
    reporter.metric(step=progress.step, **found.metrics, **found.details)
    say(f"step {progress.step}/{progress.total_steps}  {_in_words(found)}")
    for line in training.adaptation.observe(found, progress.step, training.ranks):
        say(f"step {progress.step}/{progress.total_steps}  {line}")
    for line in found.lines:
        say(line)
    if training.is_best(found):
        weights = training.weights()
        if training.ranks.leads:
            checkpoints.publish_best(progress.step, weights)
    training.ranks.wait_for_leader()


def _telling(reporter: Reporter, batches: int, between: Callable[[], None]) -> Callable[[], None]:
    """Return what is done before each batch of an evaluation, with the report of how much of it is over."""
    began, done = time.monotonic(), 0

    def tell() -> None:
        nonlocal done
        reporter.evaluated(done / batches, time.monotonic() - began)
        done += 1
        between()

    return tell


def _no_save() -> None:
    """Save nothing within an evaluation."""


def _saving_within(
    training: Training, checkpoints: Checkpoints, step: int, began: float
) -> Callable[[], None]:
    """Return what saves once, as soon as the evaluation that has begun lasts longer than a save.

    Several processes, and a model that has its averaged weights meanwhile, save before an evaluation only.
    """
    if training.ranks.world > 1 or training.averaging.is_active:
        return _no_save
    saved = False

    def save() -> None:
        nonlocal saved
        if not saved and checkpoints.guard.saves_within(time.monotonic() - began, checkpoints.stall_s):
            saved = True
            checkpoints.save(step, training.state(step))

    return save


def _in_words(found: Evaluation) -> str:
    """Return the metrics as text, each with the value of the trivial baseline."""
    parts = []
    for name, value in found.metrics.items():
        beside = f" (baseline {found.baseline[name]:.4f})" if name in found.baseline else ""
        parts.append(f"{name.replace('eval_', 'held-out ')} {value:.4f}{beside}")
    return "  ".join(parts)


def _leave_before_work(requests: StopRequests) -> None:
    """Raise ``Stopped`` before slow work begins if a stop was requested."""
    if requests.stop:
        raise Stopped("asked to stop before training began; nothing is lost")


def _leave(training: Training, checkpoints: Checkpoints, step: int, began: int) -> None:
    """Save the new steps, unless the spec disables saving on a stop, and raise ``Stopped``."""
    if not training.spec.checkpoint.on_stop:
        message = f"asked to stop at step {step}; nothing is saved when stopping, as the spec wants it"
        raise _together(training.ranks, message)
    if step > began:
        training.ranks.compare(training.replicated, step)
        state = training.state(step)
        if training.ranks.leads:
            checkpoints.save_now(step, state)
    raise _together(training.ranks, f"asked to stop; saved at step {step}")


def _together(ranks: Ranks, message: str) -> Stopped:
    """Return the reason to leave once all processes are here: one that left earlier could end a save."""
    ranks.wait_for_leader()
    return Stopped(message)
