"""The example programs as processes: killed without warning, resumed, and the same bits as never killed."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from jobs.contract import AttemptSpec, CheckpointPlan, Program, Result, RunPaths, Status, checkpoints, verify
from runner.agent.attempts.program import variables
from tests.fakes.daemon.preloaded import Forked, Preloaded, preloaded
from tests.fakes.daemon.service import until
from tests.fakes.patience import patience

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "programs"
FILE = "lightning.ckpt"
LIBRARIES = {
    "plain.py": ("torch", "torch._dynamo"),
    "with_lightning.py": ("lightning.pytorch",),
    "with_huggingface.py": ("transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
}
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "PATH": os.environ["PATH"],
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
}


@dataclass
class Job:
    """One job whose attempts are processes, as an executor would start them."""

    parent: Preloaded
    root: Path
    command: tuple[str, ...]
    save_every: int
    attempt: int = 0
    paths: RunPaths = field(init=False)

    def start(self) -> Forked:
        self.attempt += 1
        self.paths = RunPaths(self.root, self.attempt, 1)
        for leaf in (self.paths.attempt_dir, self.paths.lineage_dir, self.paths.home):
            leaf.mkdir(parents=True, exist_ok=True)
        plan = Program(command=self.command)
        saving = CheckpointPlan(every_steps=self.save_every, keep=3)
        spec = AttemptSpec(job_id="j", attempt=self.attempt, lineage=1, workload=plan, checkpoint=saving)
        self.paths.spec.write_text(spec.model_dump_json())
        environ = {**ENVIRONMENT, "HOME": str(self.paths.home), **variables(spec, plan, self.paths)}
        name, *arguments = self.command
        return self.parent.start(PROGRAMS / name, *arguments, environ=environ, log=self.paths.log)

    def end(self, process: Forked) -> int:
        code = process.wait(patience())
        assert code in {0, 75, -signal.SIGKILL}, self.paths.log.read_text()
        return code

    def newest(self) -> int:
        return next((step for step, _ in checkpoints(self.paths.lineage_dir)), 0)

    def wait_for(self, process: Forked, step: int) -> None:
        """Wait until a checkpoint of ``step`` or later is there."""
        until(lambda: self.newest() >= step or process.poll() is not None, f"a checkpoint of step {step}")
        assert process.poll() is None, f"it ended before step {step}:\n{self.paths.log.read_text()}"

    def result(self) -> Result:
        return Result.model_validate_json(self.paths.result.read_bytes())

    def digests(self) -> dict[str, str]:
        """Return the step of the newest checkpoint and the digests of all bits of the training in it."""
        import torch  # takes a second, which a worker that only collects is spared

        from jobs.checkpoint.state import digest

        step, directory = next(checkpoints(self.paths.lineage_dir))
        files = verify(directory).files
        if FILE in files:  # it counts restarts, too: compare what was trained
            saved = torch.load(directory / FILE, weights_only=True)
            return {f"{step} {part}": digest(saved[part]) for part in ("state_dict", "optimizer_states")}
        # Where and when it was trained is in these two; that is not part of the training.
        skipped = {"trainer_state.json", "training_args.bin"}
        return {f"{step} {name}": file.sha256 for name, file in files.items() if name not in skipped}


@pytest.fixture(params=LIBRARIES)
def program(request: pytest.FixtureRequest) -> str:
    framework = LIBRARIES[request.param][0].partition(".")[0]
    if find_spec(framework) is None:  # not imported here: that takes seconds
        pytest.skip(f"{framework} is not installed")
    return str(request.param)


@pytest.fixture
def parent(program: str) -> Iterator[Preloaded]:
    with preloaded(*LIBRARIES[program], environ=ENVIRONMENT) as made:
        yield made


ARGUMENTS = {"plain.py": ("500", 20), "with_lightning.py": ("5", 10), "with_huggingface.py": ("60", 4)}


@pytest.fixture
def job(parent: Preloaded, program: str, tmp_path: Path) -> Callable[[str], Job]:
    amount, save_every = ARGUMENTS[program]
    return lambda name: Job(parent, tmp_path / name, (program, amount), save_every)


@pytest.fixture
def running(job: Callable[[str], Job]) -> Iterator[tuple[Job, Forked]]:
    made = job("killed")
    process = made.start()
    yield made, process
    process.kill()


def test_a_program_that_was_killed_ends_with_the_bits_of_one_that_was_not(
    program: str, running: tuple[Job, Forked], job: Callable[[str], Job]
) -> None:
    killed, process = running
    killed.wait_for(process, 1)
    process.kill()
    assert killed.end(process) == -signal.SIGKILL
    newest = killed.newest()
    if program == "plain.py":  # the others are asked to stop where they need not be started: in tests/unit
        newest = stopped_later(killed, newest)
    assert killed.end(killed.start()) == 0
    assert (killed.result().cause, killed.result().resumed_from) == ("completed", newest)

    whole = job("whole")
    assert whole.end(whole.start()) == 0
    assert killed.digests() == whole.digests()
    status = Status.model_validate_json(whole.paths.status.read_bytes())
    assert status.step == status.total_steps == whole.newest()
    assert status.loss is not None


def stopped_later(killed: Job, first: int) -> int:
    """Resume, ask to stop after some more steps, and return the step that was saved then."""
    process = killed.start()
    killed.wait_for(process, first + 1)
    process.send_signal(signal.SIGTERM)
    assert killed.end(process) == 75
    assert (killed.result().cause, killed.result().resumed_from) == ("stopped", first)
    assert killed.result().step == killed.newest() > first
    return killed.newest()
