"""Makes a Hugging Face ``Trainer`` resumable: ``attached = Attached()``, ``attached.train(trainer)``.

The trainer's own checkpoint is complete (model, optimiser, schedule, generators), and its data
order is a function of (seed, epoch).  On one device, a training that was killed and resumed is
therefore bit-identical to an uninterrupted one.  The trainer does not publish a checkpoint atomically:
it writes under the final name.  This callback decides when to save, and moves the saved files into a
checkpoint of the lineage, which is published by a rename.  Leave ``save_strategy`` at "no": the runner does
not know the checkpoints that the trainer saves on its own.  Of several processes, all save and stop after
the same step; each saves its generators, and rank 0 publishes.  Tested with transformers 5.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import TrainOutput

from gpu_job_runner.attach import STOPPED, Attempt, apply_profile, attach

if TYPE_CHECKING:
    from gpu_job_runner.profiled import Applied


class Attached(TrainerCallback):
    """A trainer callback that resumes, seeds, reports, saves and stops."""

    def __init__(self, job: Attempt | None = None) -> None:
        self.job = job or attach()
        self._asked = self._stops = False

    def train(self, trainer: Trainer) -> TrainOutput:
        """Train to the end, from the newest valid checkpoint if there is one, and return the output.

        The process exits with the exit code of a stop when the runner requests one.
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
        **rest: Any,
    ) -> None:
        """Report the total number of steps."""
        del args, control, rest
        self.job.reports.known["total_steps"] = state.max_steps

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **rest: Any,
    ) -> None:
        """Seed the generators for this step."""
        del args, control, rest
        self.job.seed(state.global_step)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **rest: Any,
    ) -> None:
        """Request a save when a checkpoint is due, and after the last step."""
        del args, rest
        self.job.end_step(state.global_step)
        self._stops, due = self.job.agree()
        if due or state.global_step >= state.max_steps:
            self._asked = control.should_save = True

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **rest: Any,
    ) -> None:
        """Publish the trainer's checkpoint, and exit if a stop was requested."""
        del control, rest
        if not self._asked:
            return
        self._asked = False
        saved = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        self.job.save_together(lambda directory: _move(saved, directory))
        if self.job.writes:
            shutil.rmtree(saved, ignore_errors=True)
        if self._stops and state.global_step < state.max_steps:
            self.job.leave(STOPPED, f"asked to stop; step {self.job.step} is saved")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **rest: Any,
    ) -> None:
        """Report the logged numbers as metrics."""
        del args, control, rest
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        self.job.reports.numbers(state.global_step, numbers)


def profile_arguments(applied: "Applied | None" = None) -> dict[str, Any]:
    """Return the job's profile as arguments of ``TrainingArguments(**profile_arguments(), ...)``.

    Without a runner it is nothing.
    """
    applied = applied or apply_profile()
    profile = applied.profile
    if not profile:
        return {}
    loader, compiled = applied.loader(), profile["compile"]
    names = ("activation_checkpointing", "compile", "optimizer")
    applied.given({name: profile[name] for name in names})
    return {
        "bf16": applied.precision == "bf16",
        "fp16": applied.precision == "fp16",
        "gradient_checkpointing": profile["activation_checkpointing"],
        "optim": "adamw_torch_fused" if profile["optimizer"] == "fused" else "adamw_torch",
        **({} if compiled == "off" else {"torch_compile": True, "torch_compile_mode": compiled}),
        **{f"dataloader_{name}": value for name, value in loader.items()},
    }


def _move(source: Path, target: Path) -> None:
    for path in source.iterdir():
        shutil.move(path, target / path.name)
