"""What a job that shares a device is told about its part: co-operation, and no wall."""

from collections.abc import Iterable

from jobs.contract import AttemptSpec
from runner.core.ports.all import Device


def within_part(spec: AttemptSpec, part_bytes: int | None, devices: Iterable[Device]) -> AttemptSpec:
    """Return a spec whose trainer keeps to its part of the devices' memory.

    A share that the profile sets itself is kept where it is smaller.  Of devices that are not shared, or of
    an unknown size, the spec stays as it is.
    """
    sizes = [device.memory_bytes for device in devices if device.kind == "shared"]
    known = [size for size in sizes if size]
    if part_bytes is None or not known:
        return spec
    share = min(part_bytes / min(known), spec.profile.memory_fraction or 1.0, 1.0)
    return spec.model_copy(update={"profile": spec.profile.model_copy(update={"memory_fraction": share})})
