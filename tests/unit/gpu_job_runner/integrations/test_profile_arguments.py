"""A profile in the arguments of Hugging Face's and Lightning's trainers, which take them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_job_runner.profiled import Applied
from jobs.contract import Effective, Profile

Make = Callable[..., Applied]


@pytest.fixture
def applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("RUNNER_ACCELERATOR", "cpu")
    threads, numbers = torch.get_num_threads(), torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.allow_tf32
    yield lambda **switches: Applied(Profile(**switches).model_dump(mode="json"), tmp_path)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(numbers)
    torch.backends.cudnn.allow_tf32 = cudnn


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_hugging_face_takes_a_profile(applied: Make, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    from gpu_job_runner.integrations.huggingface import profile_arguments

    found = applied(
        deterministic=False, precision="bf16", optimizer="fused", loader_workers=2, loader_prefetch=3,
        activation_checkpointing=True, compile="reduce-overhead",
    )  # fmt: skip
    given = profile_arguments(found)
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, **given)
    assert (arguments.bf16, arguments.fp16, arguments.gradient_checkpointing) == (True, False, True)
    assert (
        str(arguments.optim).endswith("adamw_torch_fused".upper()) or arguments.optim == "adamw_torch_fused"
    )
    assert (arguments.dataloader_num_workers, arguments.dataloader_prefetch_factor) == (2, 3)
    assert (arguments.torch_compile, arguments.torch_compile_mode) == (True, "reduce-overhead")
    told = Effective.model_validate_json((tmp_path / "effective.json").read_bytes()).switches
    assert told["optimizer"].applied == "fused"
    assert told["compile"].applied == "reduce-overhead"
    assert told["compile"].verified is None  # the trainer was told, and nobody has looked


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_lightning_takes_a_profile(applied: Make) -> None:
    pl: Any = pytest.importorskip("lightning.pytorch", exc_type=ImportError)
    from gpu_job_runner.integrations.lightning import profile_arguments

    given = profile_arguments(applied(deterministic=False, precision="bf16", anomaly_detection=True))
    assert given == {
        "precision": "bf16-mixed", "benchmark": False, "deterministic": False, "detect_anomaly": True,
    }  # fmt: skip
    assert pl.Trainer(accelerator="cpu", logger=False, **given).precision == "bf16-mixed"


def test_without_a_runner_there_are_no_arguments() -> None:
    pytest.importorskip("lightning.pytorch", exc_type=ImportError)
    from gpu_job_runner.integrations.lightning import profile_arguments

    assert profile_arguments(Applied({})) == {}
