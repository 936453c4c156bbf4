from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from jobs.attach import Attempt
from jobs.contract import Result, Status, verify
from tests.unit.jobs.integrations.conftest import Make

transformers = pytest.importorskip("transformers", exc_type=ImportError)
pytest.importorskip("accelerate", exc_type=ImportError)

from jobs.integrations.huggingface import Attached  # noqa: E402  (needs transformers)

STEPS, BATCHES = 8, 5


class Rows(Dataset[dict[str, Tensor]]):
    """Made-up tokens."""

    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(16, (6,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class StopAt(transformers.TrainerCallback):  # type: ignore[name-defined]
    """Asks the attempt to stop within a step."""

    def __init__(self, job: Attempt, step: int | None) -> None:
        self._job, self._step = job, step

    def on_step_begin(self, args: object, state: Any, control: object, **_: object) -> None:  # noqa: ANN401
        del args, control
        self._job.stopping |= state.global_step + 1 == self._step


def train(job: Attempt, output: Path, stop_at: int | None = None, **arguments: Any) -> Tensor:  # noqa: ANN401
    """Train to the end, or to where it stops; return the weights."""
    torch.manual_seed(0)
    shape = transformers.GPT2Config(
        vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1
    )
    model = transformers.GPT2LMHeadModel(shape)
    known = {
        "output_dir": str(output),
        "use_cpu": True,
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    trainer = transformers.Trainer(
        model, transformers.TrainingArguments(**{**known, **arguments}), train_dataset=Rows()
    )
    trainer.add_callback(StopAt(job, stop_at))
    Attached(job).train(trainer)
    return torch.cat([weights.detach().flatten() for weights in model.parameters()])


@pytest.mark.parametrize("stop_at", [2, BATCHES, BATCHES + 1])
def test_a_training_that_was_stopped_ends_with_the_bits_of_one_that_was_not(
    attempt: Make, tmp_path: Path, stop_at: int
) -> None:
    whole = train(attempt("whole"), tmp_path / "one")
    with pytest.raises(SystemExit, match="75"):
        train(attempt("stopped"), tmp_path / "two", stop_at)
    resumed = attempt("stopped")
    assert torch.equal(train(resumed, tmp_path / "two"), whole)
    assert resumed.reports.known["resumed_from"] == stop_at


def test_the_host_is_told_what_it_wants_to_know(attempt: Make, tmp_path: Path) -> None:
    job = attempt("whole")
    train(job, tmp_path / "out")
    directory = job.told.attempt_dir
    assert directory is not None
    status = Status.model_validate_json((directory / "status.json").read_bytes())
    result = Result.model_validate_json((directory / "result.json").read_bytes())
    assert (status.step, status.total_steps, result.cause) == (STEPS, STEPS, "completed")
    assert status.loss is not None
    assert {"model.safetensors", "optimizer.pt"} <= verify(job.lineage.place(STEPS)).files.keys()


def test_what_the_trainer_saves_by_itself_is_left_alone(attempt: Make, tmp_path: Path) -> None:
    job = attempt("whole")
    train(job, tmp_path / "out", save_strategy="steps", save_steps=3)
    own = {path.name for path in (tmp_path / "out").glob("checkpoint-*")}
    assert own == {"checkpoint-3", "checkpoint-6"}
