"""Owners of processes, over a made-up ``/proc`` and over a real child of this process."""

import os
import subprocess

from runner.adapters.gpu.processes import DeviceProcesses
from runner.core.devices.reading import ProcessOnDevice
from runner.core.ports.executor import Alive, Key

OURS, THEIRS = "a" * 64, "b" * 64


def attempt(job: str, pid: int | None = None, container: str | None = None) -> Alive:
    return Alive(Key("i", job, 1), pid, container)


def test_a_real_child_is_found_with_its_user_and_program() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as child:
        try:
            occupants = DeviceProcesses(lambda: (attempt("7", pid=child.pid),))
            mine, own = os.getpid(), child.pid
            found = occupants.of([ProcessOnDevice(mine), ProcessOnDevice(own)])
            assert (found[own].job, found[own].uid) == ("7", os.getuid())
            assert isinstance(found[mine], ProcessOnDevice)
            assert (found[mine].job, found[mine].foreign) == (None, True)
        finally:
            child.kill()
