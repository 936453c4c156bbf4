"""Report of a driver about a device, with the processes on it and their owners as far as known."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessOnDevice:
    """A process that uses a device; a driver reports its pid, and its job or owner is found out later."""

    pid: int
    job: str | None = None
    foreign: bool = False  # its owner is known, and it belongs to no attempt
    uid: int | None = None
    user: str = ""
    program: str = ""
    used_bytes: int | None = None
    draws: bool = False  # and does not compute, as a desktop and its windows do

    def __str__(self) -> str:
        """Return the process and its owner as text for a reason."""
        known = (f"uid {self.uid}" if self.uid is not None else "", self.user, self.program)
        whose = (
            f"job {self.job}" if self.job else "a foreign process" if self.foreign else "an unknown process"
        )
        return f"{whose} ({', '.join((f'pid {self.pid}', *(word for word in known if word)))})"


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a device as its driver reports it; None: not known."""

    lost: bool | None = None  # it no longer answers, and only a person or a reset brings it back
    unusable: str | None = None  # why nothing can compute on it, though it answers
    recovery: str | None = None  # what the driver wants done first, in the words of the fact device.recovery
    util: float | None = None  # percent of the last moment in which some kernel was running
    memory: float | None = None  # share of its memory that is in use
    bus: str | None = None  # where the kernel's log says it is, as domain:bus:device
    xids: tuple[int, ...] | None = None  # error codes since the previous reading
    used_bytes: int | None = None
    processes: tuple[ProcessOnDevice, ...] | None = None  # (): none, which is not the same as not known
    power_w: float | None = None
    energy_j: float | None = None  # of the whole device, by a counter that only grows
    temperature_c: float | None = None
    ecc_uncorrectable: int | None = None  # memory errors since the driver was loaded
    throttled: tuple[str, ...] | None = None  # what holds its clocks down

    @property
    def owners_known(self) -> bool:
        """Return True if the job or owner of every process on the device is known."""
        return self.processes is not None and all(each.job or each.foreign for each in self.processes)


@dataclass(frozen=True, slots=True)
class Sample:
    """The health of a device, and when it was read (monotonic seconds)."""

    at: float
    health: Health
