"""A program that has only ``gpu_job_runner.attach``: killed at any moment, and no trace of it in the end."""

import random
import subprocess
import sys
import threading
from pathlib import Path

from gpu_job_runner import attach
from jobs.contract import Result, RunPaths, checkpoints, verify
from tests.fakes.patience import patience

KILLS = 50
STEPS = 600

PROGRAM = """
import os
import random
import signal
import sys
from pathlib import Path

from attach import Lineage, attach

state = []


def save(directory: Path) -> None:
    for part in range(3):
        (directory / f"part-{part}").write_text(repr(state[part::3]))


def load(directory: Path) -> None:
    parts = [eval((directory / f"part-{part}").read_text()) for part in range(3)]
    state[:] = [parts[step % 3][step // 3] for step in range(sum(map(len, parts)))]


def kill_at_line(number: int) -> None:
    \"\"\"Die before the n-th line of the third save, the first that also deletes one.\"\"\"
    left = number

    def look(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename.endswith("attach.py") and event == "line":
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        return look

    publish = Lineage.publish

    def traced(lineage, step, *rest):
        if step == 3:
            sys.settrace(look)
        publish(lineage, step, *rest)
        sys.settrace(None)

    Lineage.publish = traced


if len(sys.argv) > 1:
    kill_at_line(int(sys.argv[1]))
with attach(save, load) as job:
    for step in job.steps():
        state.append(random.random() + (state[-1] if state else 0.0))
        job.report(loss=state[-1])
"""


class Job:
    """A program with a copy of attach beside it, and its attempts."""

    def __init__(self, folder: Path, steps: int) -> None:
        folder.mkdir()
        (folder / "program.py").write_text(PROGRAM)
        (folder / "attach.py").write_bytes(Path(attach.__file__).read_bytes())
        self.folder, self.steps, self.attempts = folder, steps, 0
        self.lineage = RunPaths(folder, 1, 1).lineage_dir

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        self.attempts += 1
        paths = RunPaths(self.folder, self.attempts, 1)
        paths.attempt_dir.mkdir(parents=True)
        told = {
            "RUNNER_JOB_ID": "j",
            "RUNNER_ATTEMPT": str(self.attempts),
            "RUNNER_LINEAGE": "1",
            "RUNNER_SEED": "5",
            "RUNNER_STEPS": str(self.steps),
            "RUNNER_CHECKPOINT_DIR": str(paths.lineage_dir),
            "RUNNER_ATTEMPT_DIR": str(paths.attempt_dir),
            "RUNNER_SAVE_EVERY_STEPS": "1",  # nearly all of its time goes into the protocol
            "RUNNER_KEEP": "2",
        }
        command = [sys.executable, "-S", str(self.folder / "program.py"), *arguments]
        return subprocess.Popen(command, env=told, stderr=subprocess.DEVNULL)

    def newest(self) -> int:
        """Return the newest step, having verified everything that looks like a checkpoint."""
        steps = [verify(directory).step for _, directory in checkpoints(self.lineage)]
        return max(steps, default=0)

    def finish(self) -> dict[str, str]:
        """Let it end, and return the digests of what it leaves."""
        assert self.start().wait(patience()) == 0
        paths = RunPaths(self.folder, self.attempts, 1)
        assert Result.model_validate_json(paths.result.read_bytes()).cause == "completed"
        step, directory = next(checkpoints(paths.lineage_dir))
        assert step == self.steps
        assert not [
            path.name for path in self.lineage.iterdir() if path.name.startswith((".t", "bad", "sup"))
        ]
        return {name: file.sha256 for name, file in verify(directory).files.items()}


def test_fifty_kills_leave_the_bits_of_a_program_that_was_never_killed(tmp_path: Path) -> None:
    draw = random.Random(11)  # noqa: S311
    whole = Job(tmp_path / "whole", STEPS).finish()
    killed, reached, kills, lineages = Job(tmp_path / "killed 0", STEPS), set(), 0, 1
    longest_s = 0.2  # from before the imports to many saves later
    while kills < KILLS:
        process = killed.start()
        threading.Event().wait(draw.uniform(0.0, longest_s))
        process.kill()
        if process.wait() == -9:
            kills += 1
            place = (lineages, killed.newest())
            longest_s *= 1.05 if place in reached else 1.0  # a slow machine takes longer to a save
            reached.add(place)
        else:  # a fast machine reaches the end before it is killed: once more from the beginning
            assert process.returncode == 0
            assert killed.finish() == whole
            killed = Job(tmp_path / f"killed {lineages}", STEPS)
            lineages += 1
    assert len(reached) > KILLS / 8, "it hardly ever came to a save: more time"
    assert killed.finish() == whole


def test_a_kill_before_any_line_of_the_protocol_leaves_whole_checkpoints(tmp_path: Path) -> None:
    whole = Job(tmp_path / "whole", 4).finish()
    line, code = 0, -9
    while code == -9:
        line += 1
        killed = Job(tmp_path / f"line {line}", 4)
        code = killed.start(str(line)).wait(patience())
        killed.newest()
        if line % 8 == 0 or code != -9:  # every resume costs a process: at every place, but not every time
            assert killed.finish() == whole
    assert code == 0
    assert line > 60, "the lines of one save, with a deletion"
