"""Makes a Hugging Face ``Trainer`` resumable: ``attached = Attached()``, ``attached.train(trainer)``.

The trainer's own checkpoint is complete (model, optimiser, schedule, generators) and its data
order is a function of (seed, epoch), so on one device a training that was killed ends with
the bits of one that was not.  What it lacks is publication: it writes under the final name.
Here it is told when to save, and its directory is verified and renamed into the lineage.
Leave ``save_strategy`` at "no"; checkpoints that it makes by itself stay where they are and
are not known to the runner.  Tried with transformers 5.
"""

import shutil
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import TrainOutput

from jobs.attach import STOPPED, Attempt, attach


class Attached(TrainerCallback):
    """Resumes, seeds, reports, saves and stops."""

    def __init__(self, job: Attempt | None = None) -> None:
        self.job = job or attach()
        self._asked = False

    def train(self, trainer: Trainer) -> TrainOutput:
        """Train to the end, from the newest valid checkpoint if there is one, and return its output.

        Leaves with the exit code of a stop when the runner asks for one.
        """
        trainer.add_callback(self)
        with self.job:
            found: list[Path] = []
            self.job.restore(found.append)
            output: TrainOutput = trainer.train(resume_from_checkpoint=str(found[0]) if found else None)
        return output

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **rest: Any,  # noqa: ANN401
    ) -> None:
        """Say how long it will take."""
        del args, control, rest
        self.job.reports.known["total_steps"] = state.max_steps

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **rest: Any,  # noqa: ANN401
    ) -> None:
        """Make what is random a function of the step."""
        del args, control, rest
        self.job.seed(state.global_step)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **rest: Any,  # noqa: ANN401
    ) -> None:
        """Ask the trainer to save when it is time, and after the last step."""
        del args, rest
        self.job.end_step(state.global_step)
        if self.job.wants_save() or state.global_step >= state.max_steps:
            self._asked = control.should_save = True

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **rest: Any,  # noqa: ANN401
    ) -> None:
        """Publish what the trainer has saved, and leave if that was what it was for."""
        del control, rest
        if not self._asked:
            return
        self._asked = False
        saved = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        self.job.save(lambda directory: _move(saved, directory))
        shutil.rmtree(saved, ignore_errors=True)
        if self.job.stopping and state.global_step < state.max_steps:
            self.job.leave(STOPPED, f"asked to stop; step {self.job.step} is saved")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **rest: Any,  # noqa: ANN401
    ) -> None:
        """Pass numbers on."""
        del args, control, rest
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        self.job.reports.numbers(state.global_step, numbers)


def _move(source: Path, target: Path) -> None:
    for path in source.iterdir():
        shutil.move(path, target / path.name)
