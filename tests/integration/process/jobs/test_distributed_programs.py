"""Programs of several processes with ``gpu_job_runner.attach``: killed in part or whole, the same bits."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from jobs.checkpoint.state import digest
from jobs.contract import (
    AttemptSpec,
    Cause,
    CheckpointPlan,
    ExitCode,
    Program,
    Result,
    RunPaths,
    checkpoints,
    verify,
)
from runner.agent.attempts.program import variables
from tests.integration.process.jobs.gangs import REPOSITORY, Gang, program

PROGRAMS = REPOSITORY / "examples" / "programs"
PLAIN = "torch.nn.parallel torch._dynamo"
"""Libraries of a loop in plain PyTorch: its first optimizer loads the second one."""

LIGHTNING_FILE = "lightning.ckpt"


@dataclass
class Job:
    """A job of several processes, in a directory of its own."""

    root: Path
    argv: tuple[str, ...]
    save_every: int
    library: str = PLAIN
    attempts: int = 0

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.root, self.attempts, 1)

    @contextmanager
    def attempt(self, processes: int = 2) -> Iterator[Gang]:
        """Yield the next attempt, running."""
        self.attempts += 1
        paths = self.paths
        for leaf in (paths.attempt_dir, paths.lineage_dir, paths.home):
            leaf.mkdir(parents=True, exist_ok=True)
        plan = Program(command=self.argv, launcher="gang", processes=processes)
        saving = CheckpointPlan(every_steps=self.save_every, keep=3)
        spec = AttemptSpec(job_id="j", attempt=self.attempts, lineage=1, workload=plan, checkpoint=saving)
        more = {"HOME": str(paths.home), **variables(spec, plan, paths)}
        with program(paths, processes, *self.argv, more=more, library=self.library) as gang:
            yield gang

    def finish(self, processes: int = 2) -> None:
        with self.attempt(processes) as gang:
            assert gang.end() == ExitCode.FINISHED, gang.output
        assert self.result().cause is Cause.COMPLETED

    def saved(self, times: int) -> Path:
        """Return where the checkpoint lies that is the first, second and so on."""
        return self.paths.lineage_dir / f"step-{times * self.save_every:08d}"

    def newest(self) -> int:
        return next(step for step, _ in checkpoints(self.paths.lineage_dir))

    def result(self) -> Result:
        return Result.model_validate_json(self.paths.result.read_bytes())

    def digests(self) -> dict[str, str]:
        """Return the digests of all bits of the training in its newest checkpoint."""
        step, directory = next(checkpoints(self.paths.lineage_dir))
        files = verify(directory).files
        if LIGHTNING_FILE in files:  # it counts restarts, too
            saved = torch.load(directory / LIGHTNING_FILE, weights_only=True)
            return {f"{step} {part}": digest(saved[part]) for part in ("state_dict", "optimizer_states")}
        skipped = {"trainer_state.json", "training_args.bin"}  # when and where it was trained
        return {f"{step} {name}": file.sha256 for name, file in files.items() if name not in skipped}


def python(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / name), *arguments)


CASES = {
    "torch": (python("distributed.py", "900"), 100, PLAIN),
    "lightning": (python("with_lightning.py", "20"), 40, "lightning.pytorch"),
    "transformers": (python("with_huggingface.py", "60"), 10, "transformers.trainer"),
}


@pytest.mark.parametrize("framework", CASES)
def test_killed_in_part_and_as_a_whole_it_ends_with_the_bits_of_one_that_was_not(
    tmp_path: Path, framework: str
) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    whole, killed = (Job(tmp_path / name, *CASES[framework]) for name in ("whole", "killed"))
    whole.finish()
    if framework == "torch":  # a part that is lost is the launcher's matter, whatever the framework
        with killed.attempt() as gang:
            gang.wait_while_running(killed.saved(1).exists)
            os.kill(gang.rank(1), signal.SIGKILL)
            assert gang.end() == 128 + signal.SIGKILL, gang.output
        assert (killed.result().rank, killed.result().processes) == (1, 2)
    with killed.attempt() as gang:
        gang.wait_while_running(killed.saved(3).exists)
        gang.kill()
    newest = killed.newest()
    assert newest < whole.newest()
    killed.finish()
    assert killed.result().resumed_from == newest
    assert killed.digests() == whole.digests()


@pytest.fixture
def plain(tmp_path: Path) -> Job:
    return Job(tmp_path / "job", python("distributed.py", "100000"), 100)


def test_a_save_that_is_asked_for_is_made_and_a_stop_ends_all_after_one_step_that_is_saved(
    plain: Job,
) -> None:
    plain.save_every = 10**6
    with plain.attempt() as gang:
        gang.wait_for("step 50:")
        gang.launcher.send_signal(signal.SIGUSR1)
        gang.wait_while_running(lambda: bool(list(checkpoints(plain.paths.lineage_dir))))
        asked = plain.newest()
        gang.launcher.send_signal(signal.SIGTERM)
        assert gang.end() == ExitCode.STOPPED, gang.output
        said = f"exiting with 75: asked to stop; step {plain.newest()} is saved"
        assert said in gang.output
        assert said in gang.log(1)
    assert {step for step, _ in checkpoints(plain.paths.lineage_dir)} == {plain.newest(), asked}
    assert (plain.result().cause, plain.result().step) == (Cause.STOPPED, plain.newest())


def tear(directory: Path) -> None:
    (directory / "state.pt").write_bytes(b"torn")


def test_all_resume_from_the_step_that_rank_0_finds_valid_and_leave_if_there_is_none(plain: Job) -> None:
    with plain.attempt() as gang:
        gang.wait_while_running(plain.saved(3).exists)
        gang.kill()
    (_, newest), (before, _), *_ = checkpoints(plain.paths.lineage_dir)
    tear(newest)
    with plain.attempt() as gang:
        gang.wait_for(f"resumed from step {before}")
        gang.wait_for_log(1, f"resumed from step {before}")
        gang.kill()
    for _, directory in checkpoints(plain.paths.lineage_dir):
        tear(directory)
    with plain.attempt() as gang:
        assert gang.end() == ExitCode.NO_VALID_CHECKPOINT, gang.output
        assert "exiting with 99: rank 0 found none" in gang.log(1)
    assert plain.result().cause is Cause.NO_VALID_CHECKPOINT


PARTS = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from gpu_job_runner.attach import attach

dist.init_process_group("gloo")
rank = dist.get_rank()
state = torch.zeros(1)

def save(directory):
    if sys.argv[1] == "full" and job.step == 4 and rank == 1:
        raise OSError(28, "No space left on device")
    torch.save(state, directory / f"part-{rank}.pt")

def load(directory):
    state.copy_(torch.load(directory / f"part-{rank}.pt", weights_only=True))

job = attach(save, load, every_process=True)
with job:
    for step in job.steps(7):
        state += (rank + 1) * (step + 1)
        if sys.argv[1] == "memory" and rank == 1 and step == 4:
            raise torch.OutOfMemoryError("made up")
        if sys.argv[1] == "broken" and rank == 1 and step == 4:
            raise LookupError("no such row")
        dist.barrier()
print("state", float(state))
dist.destroy_process_group()
"""


@pytest.fixture
def parts(tmp_path: Path) -> Job:
    """A program whose processes each save a part."""
    (tmp_path / "parts.py").write_text(PARTS)
    return Job(tmp_path / "job", (sys.executable, str(tmp_path / "parts.py"), "well"), 2)


def test_every_process_writes_its_part_of_a_checkpoint(parts: Job) -> None:
    parts.finish()
    step, directory = next(checkpoints(parts.paths.lineage_dir))
    assert (step, set(verify(directory).files)) == (7, {"part-0.pt", "part-1.pt"})
    found = [float(torch.load(directory / f"part-{rank}.pt", weights_only=True)) for rank in (0, 1)]
    assert found == [28.0, 56.0]


def test_a_part_that_finds_the_disk_full_leaves_no_checkpoint_and_they_go_on(parts: Job) -> None:
    parts.argv = (*parts.argv[:2], "full")
    with parts.attempt() as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert "checkpoint of step 4 skipped" in gang.output
    assert [step for step, _ in checkpoints(parts.paths.lineage_dir)] == [7, 6, 2]


def test_a_process_without_memory_says_so_for_the_attempt(parts: Job) -> None:
    parts.argv = (*parts.argv[:2], "memory")
    with parts.attempt() as gang:
        assert gang.end() == ExitCode.DEVICE_OUT_OF_MEMORY, gang.output
    result = parts.result()
    assert (result.cause, result.rank, result.message) == (Cause.DEVICE_OUT_OF_MEMORY, 1, "made up")


def test_an_exception_of_one_process_is_that_of_the_attempt(parts: Job) -> None:
    parts.argv = (*parts.argv[:2], "broken")
    with parts.attempt() as gang:
        assert gang.end() == 1, gang.output
    result = parts.result()
    assert (result.rank, result.message) == (1, "LookupError: no such row")


def test_processes_that_are_not_connected_are_told_and_each_goes_on(parts: Job) -> None:
    Path(parts.argv[1]).write_text(
        "from gpu_job_runner.attach import attach\n"
        "with attach(lambda d: (d / 'x').write_text('x'), lambda d: None) as job:\n"
        "    for step in job.steps(3):\n"
        "        pass\n"
    )
    with parts.attempt() as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert "rank 1 of 2: torch.distributed does not connect the processes" in gang.log(1)
    assert parts.newest() == 3
