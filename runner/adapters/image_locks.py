"""Choice of the lock of the CUDA image for this machine: by its driver and its GPUs, as NVML says."""

from collections.abc import Callable
from contextlib import suppress

from images.errors import BuildFailed
from images.lock_files import LockFile
from images.settings import ImageSettings
from images.store import ImageStore
from runner.adapters.gpu.nvidia import describe_driver
from runner.base.errors import Unavailable
from runner.core.cuda import Gpu, choose_lock
from runner.core.doctor import NvidiaFacts


def choose_for_this_machine(
    locks: tuple[LockFile, ...], describe: Callable[[], NvidiaFacts] = describe_driver
) -> LockFile:
    """Return the lock whose image the driver can run; ``locks`` are for one accelerator, the newest first.

    Nothing that can be read here decides between locks for ROCm or CPUs: the newest is taken.

    Raises:
        Unavailable: the driver is too old for all of them; the job waits, and the next look may be another.
    """
    offered = {lock.name: lock.version for lock in locks if lock.version is not None}
    if locks[0].accelerator != "cuda" or not offered:
        return locks[0]
    facts = describe()
    choice = choose_lock(offered, facts.driver, [Gpu(gpu.name, gpu.capability) for gpu in facts.gpus])
    if choice.name is None:
        raise Unavailable(f"no CUDA image is built: {choice.problem}")
    return next(lock for lock in locks if lock.name == choice.name)


def cuda_of_images(
    settings: ImageSettings, describe: Callable[[], NvidiaFacts] = describe_driver
) -> tuple[int, int] | None:
    """Return the CUDA of the torch in the image that jobs get here; of the newest lock if none fits."""
    with suppress(Unavailable, BuildFailed):
        return (
            ImageStore(settings, choose=lambda locks: choose_for_this_machine(locks, describe))
            .lock("cuda")
            .version
        )
    with suppress(BuildFailed):
        return ImageStore(settings).lock("cuda").version
    return None
