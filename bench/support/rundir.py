"""A run directory as the daemon makes one, for a program that ``docker run`` starts."""

from pathlib import Path

from bench.rivals.container import DockerPlan
from jobs.contract import AttemptSpec
from runner.adapters.host.run_directory import HostRunDirectory
from runner.core.ports.users import Owner


def prepare_run_directory(directory: Path, plan: DockerPlan) -> Path:
    """Create a run directory below ``directory`` with all files that the program reads, and return it."""
    uid, _, gid = str(plan.config["User"]).partition(":")
    run = HostRunDirectory(directory / "job", Owner(int(uid), int(gid), "bench"))
    run.create()
    run.prepare(AttemptSpec.model_validate_json(plan.spec), {})
    return run.root
