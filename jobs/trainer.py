"""The training loop, and what happens between its steps.

Every line of ``train`` is one obligation of *kill it at any moment, resume, same bits*: the
step is a pure function of the state (``jobs.training``), a checkpoint is complete or absent
(``jobs.lineage``), and the finished model is published before the exit status says so.
"""

import math

from jobs.checkpoint import Checkpoints, Found
from jobs.compilation import compile_training
from jobs.contract import AttemptSpec, Phase, RunPaths
from jobs.device import out_of_memory_named, prepare
from jobs.failures import InvalidSpec, Stopped
from jobs.lineage import Stamp, locked
from jobs.report import Reporter, say, warn
from jobs.signals import Requests
from jobs.signatures import differences
from jobs.training import Training
from jobs.workloads import build


def run(spec: AttemptSpec, paths: RunPaths, reporter: Reporter, requests: Requests) -> None:
    """Carry one attempt to its end; afterwards the finished model is on the disk.

    Raises:
        Failure: it ended early, one subclass for each reason.
    """
    with locked(paths.lineage_dir, requests):
        training = _prepare(spec, reporter, requests)
        checkpoints = Checkpoints(
            paths.lineage_dir,
            spec.checkpoint,
            _stamp(training),
            reporter,
            in_background=spec.profile.async_save,
        )
        with checkpoints, out_of_memory_named(training.device):
            train(training, checkpoints, reporter, requests)


def train(training: Training, checkpoints: Checkpoints, reporter: Reporter, requests: Requests) -> None:
    """Train from the newest checkpoint to the last step, and publish the model."""
    plan, progress = training.plan, reporter.progress
    if _is_finished(training, checkpoints, reporter):
        return
    step = began = _resume(training, checkpoints, reporter)
    with reporter.within(Phase.TRAIN):
        while step < plan.steps:
            if requests.stop:
                _leave(training, checkpoints, step, began)
            loss, took = training.update(step)
            step += 1
            reporter.stepped(step, loss, took)
            _report(training, reporter, requests)
            checkpoints.poll()
            if step < plan.steps and (requests.take_save() or checkpoints.due(step)):
                checkpoints.save(step, training.state(step))
        checkpoints.save_now(step, training.state(step))
        progress.weights_sha256 = checkpoints.publish_final(step, training.weights())
    say(f"finished at step {step}: weights sha256 {progress.weights_sha256}")


def _prepare(spec: AttemptSpec, reporter: Reporter, requests: Requests) -> Training:
    _leave_before_work(requests)
    device = prepare(spec)
    reporter.memory = device.memory_bytes
    reporter.progress.total_steps = spec.workload.steps
    with reporter.within(Phase.DATA):
        workload = build(spec.workload, spec.seed)
    _leave_before_work(requests)
    with out_of_memory_named(device):
        training = Training(spec, workload, device)
        if spec.profile.compile:
            _compile(training, reporter)
    effective = training.effective()
    reporter.effective(effective)
    reporter.progress.metrics["baseline_loss"] = workload.baseline_loss
    say(
        f"{effective.parameters:,} parameters, {effective.train_items:,} items,"
        f" {effective.device} ({effective.device_name}), {effective.threads} threads, {effective.precision},"
        f" baseline loss {workload.baseline_loss:.4f}"
    )
    return training


def _compile(training: Training, reporter: Reporter) -> None:
    with reporter.within(Phase.COMPILE):
        compile_training(training)


def _stamp(training: Training) -> Stamp:
    spec = training.spec
    return Stamp(
        spec.job_id, spec.lineage, spec.attempt, spec.revision, training.signatures, training.environment
    )


def _is_finished(training: Training, checkpoints: Checkpoints, reporter: Reporter) -> bool:
    """Return whether an attempt that was killed after publishing the model has left nothing to do."""
    steps, progress = training.plan.steps, reporter.progress
    if training.spec.resume_step is not None:
        return False
    progress.weights_sha256 = checkpoints.finished(steps)
    if progress.weights_sha256 is None:
        return False
    progress.step = steps
    say(f"the finished model is published already: weights sha256 {progress.weights_sha256}")
    return True


def _resume(training: Training, checkpoints: Checkpoints, reporter: Reporter) -> int:
    """Return the step to go on from, with the state of that step in memory."""
    found = checkpoints.find(training.spec.resume_step)
    if found is not None:
        _take_up(training, found, reporter)
    checkpoints.adopt(found)
    reporter.beat()
    return found.manifest.step if found else 0


def _take_up(training: Training, found: Found, reporter: Reporter) -> None:
    step, progress = found.manifest.step, reporter.progress
    if step > training.plan.steps:
        raise InvalidSpec(
            f"the checkpoint is at step {step}, beyond the {training.plan.steps} steps of the spec;"
            " resume from an earlier step or restart from scratch"
        )
    changed = differences(found.manifest.signatures, training.signatures)
    training.load(found.state)
    progress.step = progress.resumed_from = progress.checkpoint_step = step
    progress.rejected = found.rejected
    for rejected in found.rejected:
        warn(f"{rejected.name} was not used: {rejected.why}")
    if changed:
        warn(
            f"other {', '.join(changed)} than when step {step} was saved: the bits will differ from there on"
        )
    say(f"resumed from step {step}")


def _report(training: Training, reporter: Reporter, requests: Requests) -> None:
    """Log and evaluate when the plan wants it after the newest step."""
    plan, progress = training.plan, reporter.progress
    step, last = progress.step, progress.step == plan.steps
    if last or step % plan.log_every == 0:
        reporter.log_step(training.learning_rate(step - 1))
        progress.metrics |= {"loss": progress.loss if progress.loss is not None else math.nan}
    if plan.eval_every is not None and (last or step % plan.eval_every == 0):
        _evaluate(training, reporter, requests)


def _evaluate(training: Training, reporter: Reporter, requests: Requests) -> None:
    progress = reporter.progress
    with reporter.within(Phase.EVAL):
        loss = training.evaluate(requests)
    if loss is None:
        return
    progress.metrics |= {"eval_loss": loss}
    reporter.metric(step=progress.step, eval_loss=loss)
    baseline = training.workload.baseline_loss
    say(f"step {progress.step}/{progress.total_steps}  held-out loss {loss:.4f}  (baseline {baseline:.4f})")


def _leave_before_work(requests: Requests) -> None:
    """Leave before something slow begins, if that was asked for."""
    if requests.stop:
        raise Stopped("asked to stop before training began; nothing is lost")


def _leave(training: Training, checkpoints: Checkpoints, step: int, began: int) -> None:
    """Save what is new and raise ``Stopped``."""
    if step > began:
        checkpoints.save_now(step, training.state(step))
    raise Stopped(f"asked to stop; saved at step {step}")
