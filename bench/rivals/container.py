"""The command ``docker``: a program to compare with, and a means to pause and kill containers."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.support.result import CannotMeasure

FREEZES: Final = 10
FREEZE_AGAIN_S: Final = 0.5


def docker(*arguments: str) -> str:
    """Return the output of a docker command.

    Raises:
        CannotMeasure: the command does not exist or failed.
    """
    if shutil.which("docker") is None:
        raise CannotMeasure("there is no docker command")
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        raise CannotMeasure(f"docker {arguments[0]} ended with exit code {done.returncode}: {said}")
    return done.stdout.strip()


def pause(name: str) -> None:
    """Pause a container; repeat if the kernel cannot freeze one of its processes yet.

    Raises:
        CannotMeasure: every try failed.
    """
    for left in reversed(range(FREEZES)):
        try:
            docker("pause", name)
        except CannotMeasure:
            if not left:
                raise
            time.sleep(FREEZE_AGAIN_S)
        else:
            return


def containers_of(instance: str) -> list[str]:
    """Return the containers that belong to one daemon's store, ended ones included."""
    return docker("ps", "--all", "--quiet", "--filter", f"label=runner.instance={instance}").split()


def time_until(argv: Sequence[str], output: Path, seen: Callable[[], float]) -> float:
    """Return the seconds from the start of ``docker run`` until ``seen`` returns; remove it then."""
    with output.open("wb") as file:
        began = time.perf_counter()
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        return seen() - began
    finally:
        docker("rm", "--force", argv[argv.index("--name") + 1])
        process.wait()


@dataclass(frozen=True, slots=True)
class DockerPlan:
    """The engine arguments and the program's specification that the runner would use for an attempt."""

    image: str
    config: Mapping[str, Any]
    spec: str

    def bare_argv(self, name: str, run_dir: Path) -> list[str]:
        """Return a plain ``docker run`` of the same program, as a user would type it.

        It has no network, like the runner's container.  This is faster, so the comparison favours Docker.
        """
        config = self.config
        variables = [part for variable in config["Env"] for part in ("--env", variable)]
        mount = f"type=bind,source={run_dir},target=/job"
        return [
            *(
                "docker",
                "run",
                "--name",
                name,
                "--network",
                "none",
                "--user",
                config["User"],
                "--mount",
                mount,
            ),
            *variables,
            self.image,
            *config["Cmd"],
        ]

    def hardened_argv(self, name: str, run_dir: Path) -> list[str]:
        """Return ``docker run`` with the isolation options that the runner uses for the same program."""
        head, image_and_program = _split(self.bare_argv(name, run_dir), self.image)
        return [*head, *_hardening_options(self.config["HostConfig"]), *image_and_program]


def make_plan(image: str, answer: Mapping[str, Any]) -> DockerPlan:
    """Return the plan from the answer to a dry run, for an existing image.

    Raises:
        CannotMeasure: the daemon runs attempts as plain processes.
    """
    if "config" not in answer["engine"]:
        raise CannotMeasure("no container engine: attempts are plain processes here")
    return DockerPlan(image, answer["engine"]["config"], json.dumps(answer["spec"]))


def _split(argv: Sequence[str], image: str) -> tuple[Sequence[str], Sequence[str]]:
    place = argv.index(image)
    return argv[:place], argv[place:]


def _hardening_options(host: Mapping[str, Any]) -> list[str]:
    [(tmp, options)] = host["Tmpfs"].items()
    ulimits = [f"--ulimit={limit['Name']}={limit['Soft']}:{limit['Hard']}" for limit in host["Ulimits"]]
    return [
        *("--init", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--ipc=private"),
        f"--tmpfs={tmp}:{options}",
        f"--memory={host['Memory']}",
        f"--memory-swap={host['MemorySwap']}",
        f"--cpus={host['NanoCpus'] / 1e9:g}",
        f"--pids-limit={host['PidsLimit']}",
        f"--shm-size={host['ShmSize']}",
        *ulimits,
    ]
