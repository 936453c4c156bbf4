"""The acting half of the daemon: what each command means to the world.

Called in lanes, where it may block; it knows nothing of the loop, and answers with the event
that the command brought about, if it brought any about by itself.  An engine that does not
answer is ``Unavailable`` and no event.
"""

from signal import SIGKILL, SIGTERM

from runner.base.errors import Refused, UsageError
from runner.control.context import Unstarted, World
from runner.core.job.model import (
    Command,
    Event,
    ImageFailed,
    ImageMissing,
    ImageReady,
    Kill,
    Launch,
    Launched,
    PrepareImage,
    Remove,
    Terminate,
)
from runner.core.ports.all import BuildFailed, ImageGone, JobRow, LaunchRefused


def carry_out(world: World, row: JobRow, command: Command, imageless: int) -> Event | Unstarted | None:
    """Return what came of a command; ``imageless`` launches before it did not find the image.

    Raises:
        Unavailable: nothing is known; give the command again.
    """
    match command:
        case PrepareImage():
            return _prepare(world, row)
        case Launch():
            return _launch(world, row, command, imageless)
        case Terminate(number):
            world.executor.signal(world.key(row.job.id, number), SIGTERM)
        case Kill(number):
            world.executor.signal(world.key(row.job.id, number), SIGKILL)
        case Remove(number):  # exhaustive
            world.executor.remove(world.key(row.job.id, number))
    return None


def _prepare(world: World, row: JobRow) -> Event:
    try:
        image = world.workshop.prepare_image(row)
    except BuildFailed as error:
        return ImageFailed(world.clock.now(), str(error))
    return ImageReady(world.clock.now(), image)


def _launch(world: World, row: JobRow, command: Launch, imageless: int) -> Event | Unstarted:
    devices = tuple(d for d in world.capacity.devices if d.uuid in command.allocation.devices)
    try:
        world.executor.launch(world.workshop.request(row, command.attempt, command.image, devices))
    except ImageGone:
        return _imageless(world, row, command, imageless)
    except (LaunchRefused, Refused, UsageError) as error:
        return _refused(world, row, command, str(error))
    finally:
        world.workshop.let_go(row)
    return Launched(world.clock.now(), world.boot)


def _refused(world: World, row: JobRow, command: Launch, why: str) -> Unstarted:
    policy = world.workshop.policy(row)
    return Unstarted(row.job.id, command.attempt.number, world.clock.now(), why, policy)


def _imageless(world: World, row: JobRow, command: Launch, before: int) -> Event | Unstarted:
    """Prepare a missing image again, once: one that is missing again will not appear by itself."""
    if before == 0:
        return ImageMissing(world.clock.now())
    why = f"image {command.image}: is not in the engine, although it was prepared"
    return _refused(world, row, command, why)
