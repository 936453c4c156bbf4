"""An executor: attempts as plain processes, with the lowest priority for the processor."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from runner.adapters.process.exec import ProcessExec
from runner.adapters.process.executor import ProcessExecutor, ProcessSettings
from runner.core.ports.exec import ExecPort
from runner.core.ports.executor import LaunchRequest, LaunchResult
from runner.files.settings.model import Settings
from runner.server.executors import ExecutorType


class NiceExecutor(ProcessExecutor):
    """Plain processes under ``nice``."""

    kind = "nice"  # the name in the settings, which the store keeps with unfinished jobs

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Start the attempt, as the plain processes do."""
        return super().launch(replace(request, argv=("nice", "-n", "19", *request.argv)))


def make(directory: Path, _settings: Settings, instance: str) -> NiceExecutor:
    """Return the executor of a daemon with this state directory."""
    return NiceExecutor(ProcessSettings(instance, directory / "processes"))


def commands(directory: Path, _settings: Settings) -> ExecPort:
    """Return the port that runs commands inside of attempts."""
    return ProcessExec(directory / "processes")


NICE: Final = ExecutorType(make, commands)
