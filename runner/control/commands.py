"""Effect of each command of a job on the executor and on images.

``execute`` runs on a worker, where it may block.  It knows nothing of the loop, and returns the event that
the command brought about, if there is one.  An engine that does not answer is ``Unavailable``, and no event.
"""

from dataclasses import replace
from signal import SIGKILL, SIGTERM

from runner.base.errors import Refused, Unavailable, UsageError
from runner.control.context import Context
from runner.control.messages import LaunchAccepted, LaunchRefusal
from runner.core.job.attempt import Attempt
from runner.core.job.commands import Command, Kill, Launch, PrepareImage, Remove, Terminate
from runner.core.job.events import (
    Event,
    HostFailed,
    ImageFailed,
    ImageMissing,
    ImageReady,
    Launched,
    PreparationRefused,
)
from runner.core.ports.executor import (
    Alive,
    HostFault,
    ImageGone,
    ImageUnfit,
    LaunchRefused,
    LaunchResult,
    OptionsUnfit,
)
from runner.core.ports.images import BuildFailed
from runner.core.ports.store import JobRow


def execute(context: Context, row: JobRow, command: Command) -> Event | LaunchRefusal | LaunchAccepted | None:
    """Return the result of a command.

    Raises:
        Unavailable: nothing is known; give the command again.
    """
    match command:
        case PrepareImage():
            return _prepare(context, row)
        case Launch():
            return _launch(context, row, command)
        case Terminate(number):
            context.executor.signal(context.key(row.job.id, number), SIGTERM)
        case Kill(number):
            context.executor.signal(context.key(row.job.id, number), SIGKILL)
        case Remove(number):  # exhaustive
            context.executor.remove(context.key(row.job.id, number))
    return None


def _prepare(context: Context, row: JobRow) -> Event:
    try:
        image = context.attempt_service.prepare_image(row)
    except BuildFailed as error:
        return ImageFailed(context.clock.now(), str(error))
    except (Refused, UsageError) as error:
        return PreparationRefused(context.clock.now(), str(error))
    return ImageReady(context.clock.now(), image)


def _launch(context: Context, row: JobRow, command: Launch) -> Event | LaunchRefusal | LaunchAccepted:
    devices = tuple(d for d in context.capacity.devices if d.uuid in command.allocation.devices)
    try:
        try:
            launch = context.attempt_service.prepare_launch(row, command.attempt, command.image, devices)
        except Refused as error:  # of the runner itself: another attempt would be refused, too
            return replace(_refused(context, row, command, str(error)), hold=True)
        _check_lineage(context, row, command.attempt)
        _check_skipped(context, row, command.attempt)
        result = context.executor.launch(launch.request)
    except ImageGone:
        return ImageMissing(context.clock.now())
    except HostFault as error:
        return HostFailed(context.clock.now(), str(error))
    except (LaunchRefused, Refused, UsageError) as error:
        own = isinstance(error, ImageUnfit | OptionsUnfit)
        return replace(_refused(context, row, command, str(error)), own=own)
    finally:
        context.attempt_service.release_launch(row)
    if result is LaunchResult.ACCEPTED:
        return LaunchAccepted(command.attempt.number, launch.resumed)
    return Launched(context.clock.now(), context.boot, context.clock.monotonic(), launch.resumed)


def _check_lineage(context: Context, row: JobRow, attempt: Attempt) -> None:
    """Raise ``Unavailable`` while an earlier attempt has not died: a launch beside it would only fail.

    An attempt that was launched before holds the lock itself.  Of an engine with nodes nobody waits for the
    lock: on a node that is lost it may be held for ever, and the earlier attempt can publish nothing
    once the later one owns the lineage.
    """
    if context.executor.queues or not context.attempt_service.is_lineage_locked(row, attempt):
        return
    key = context.key(row.job.id, attempt.number)
    if not any(seen.key == key for seen in context.executor.observe()):
        fact = f"lineage {attempt.lineage} is locked by a process of an earlier attempt that has not died"
        raise Unavailable(f"{fact}; end it, or wait: the launch is tried again")


def _check_skipped(context: Context, row: JobRow, attempt: Attempt) -> None:
    """Raise ``Unavailable`` while an attempt runs that the store does not know, as after a restore."""
    if not attempt.skipped:
        return
    unknown = range(attempt.number - attempt.skipped, attempt.number)
    keys = {context.key(row.job.id, number) for number in unknown}
    seen = [each for each in context.executor.observe() if each.key in keys]
    alive = sorted(each.key.attempt for each in seen if isinstance(each, Alive))
    if alive:
        fact = f"attempt {alive[0]} still runs, which the store does not know because it was restored"
        raise Unavailable(f"{fact}; end it, or wait: attempt {attempt.number} is launched afterwards")


def _refused(context: Context, row: JobRow, command: Launch, why: str) -> LaunchRefusal:
    policy = context.attempt_service.policy(row)
    return LaunchRefusal(row.job.id, command.attempt.number, context.clock.now(), why, policy)
