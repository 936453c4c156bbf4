"""The time from ``runner submit`` of a job with packages to its first line.

New packages are compared with what a user would do without the runner: ``uv venv``, ``uv pip install`` of
the same into it, and ``docker run`` of the same image with that environment.  The wheels come from a folder
and are in the caches of both.  One of the ten is new in each round, so that the runner has to resolve, unpack
and build anew.  The same packages again are compared with a job without any; both
run one program, which imports none.
"""

import itertools
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.cases.first_line import await_content
from bench.rivals import container
from bench.support import interleave
from bench.support.daemon import BenchDaemon, runner_command, running_daemon
from bench.support.jobfile import CPUS
from bench.support.result import Aim, Line, Result, in_milliseconds
from bench.support.scratch import Scratch
from images.packages.program import find_uv

BENCH: Final = "packages"
NEW: Final = "new packages to first line"
BY_HAND: Final = "uv pip install and docker run"
AGAIN: Final = "same packages to first line"
WITHOUT: Final = "no packages to first line"
PACKAGES: Final = 10
FILES: Final = 100
FILE_BYTES: Final = 10_000


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the time with new packages beside uv and docker, and with known ones beside none."""
    scratch.root.chmod(0o755)  # the daemon of root resolves and unpacks as other users
    wheels = scratch.directory("wheels")
    wheels.chmod(0o755)
    for number in range(PACKAGES - 1):
        write_wheel(wheels, f"bench-{number}", "1.0")
    settings = f"packages: {{find_links: [{wheels}], no_index: true}}\n"
    with running_daemon(scratch.directory("daemon"), more=settings) as daemon:
        daemon.directory.chmod(0o755)
        case = _Case(scratch, daemon, wheels)
        contestants = {
            NEW: case.time_new,
            BY_HAND: case.time_by_hand,
            AGAIN: lambda: case.time_job(known(PACKAGES - 1), imported=()),
            WITHOUT: lambda: case.time_job(()),
        }
        case.time_job(known(PACKAGES - 1))
        seconds = interleave.interleave(scratch.effort.first_lines, scratch.effort.warmups, contestants)
    series = {name: in_milliseconds(name, values) for name, values in seconds.items()}
    yield Result(BENCH, series[NEW], series[BY_HAND], Aim(1.3, "ratio"))
    yield Result(BENCH, series[AGAIN], series[WITHOUT], Aim(1.05, "ratio"))


class _Case:
    """One daemon, one folder of wheels, and the environments that were made by hand."""

    def __init__(self, scratch: Scratch, daemon: BenchDaemon, wheels: Path) -> None:
        self.scratch, self.daemon, self.wheels = scratch, daemon, wheels
        self.numbers = itertools.count(1)
        job = daemon.submit(daemon.write(job_text((), ())))
        self.image = str(daemon.await_state(job, "running")["image"])
        daemon.end(job)

    def time_new(self) -> float:
        return self.time_job((*known(PACKAGES - 1), self._new("bench-new")))

    def _new(self, name: str) -> str:
        """Make a wheel of a version that nobody has seen, and return its requirement."""
        version = f"{next(self.numbers)}.0"
        write_wheel(self.wheels, name, version)
        return f"{name}=={version}"

    def time_job(self, requirements: tuple[str, ...], imported: tuple[str, ...] | None = None) -> float:
        """Return the seconds from the start of ``runner submit`` to the first line.

        The program imports all packages, or those that are named.
        """
        file = self.daemon.write(job_text(requirements, requirements if imported is None else imported))
        job = self.daemon.next_id()
        began = time.perf_counter()
        argv = [*runner_command(), "submit", str(file)]
        with subprocess.Popen(argv, env=self.daemon.environment, stdout=subprocess.DEVNULL):
            seen = await_content(self.daemon.log(job, 1))
        self.daemon.end(job)
        return seen - began

    def time_by_hand(self) -> float:
        """Return the seconds of uv and ``docker run`` to the first line."""
        wanted, place = self._new("bench-hand"), self.scratch.directory("by-hand")
        uv, target = find_uv(), place / "environment"
        began = time.perf_counter()
        quiet = ["--quiet", "--no-config", f"--cache-dir={self.scratch.root / 'uv-cache'}"]
        subprocess.run([uv, "venv", *quiet, f"--python={sys.executable}", target], check=True)
        found = [f"--find-links={self.wheels}", "--no-index", f"--python={target / 'bin' / 'python'}"]
        packages = [*known(PACKAGES - 1), wanted]
        subprocess.run([uv, "pip", "install", *quiet, *found, *packages], check=True)
        [site] = target.glob("lib/python*/site-packages")
        name = f"{self.scratch.root.name}-{next(self.numbers)}"
        mount = f"type=bind,source={site},target=/packages,readonly"
        head = ["docker", "run", "--name", name, "--network=none", f"--mount={mount}"]
        argv = [*head, "--env=PYTHONPATH=/packages", self.image, "python", "-uc", program(packages)]
        output, installed = place / "output", time.perf_counter() - began
        return installed + container.time_until(argv, output, lambda: await_content(output))


def known(count: int) -> tuple[str, ...]:
    """Return the requirements of the packages that are the same in each round."""
    return tuple(f"bench-{number}==1.0" for number in range(count))


def program(requirements: tuple[str, ...] | list[str]) -> str:
    """Return a program that imports packages, prints a line and stays."""
    names = [each.partition("==")[0].replace("-", "_") for each in requirements]
    imports = f"import {', '.join(names)}; " if names else ""
    return f"{imports}print('ready', flush=True); import time; time.sleep(600)"


def job_text(requirements: tuple[str, ...], imported: tuple[str, ...]) -> str:
    """Return a job file of a program with some packages."""
    image = f"image: {{requirements: [{', '.join(requirements)}]}}\n" if requirements else ""
    command = f'["python", "-uc", "{program(imported)}"]'
    workload = f"workload: {{kind: program, command: {command}}}\n"
    return f"name: bench\n{workload}{image}resources: {{cpus: {CPUS}, memory: 1GiB}}\n"


def write_wheel(folder: Path, name: str, version: str) -> None:
    """Write a wheel of about a megabyte."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        for number in range(FILES):
            wheel.writestr(f"{module}/part_{number}.py", f"TEXT = '{number % 10}'  # {'x' * FILE_BYTES}\n")
        wheel.writestr(f"{module}/__init__.py", f"VERSION = '{version}'\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
