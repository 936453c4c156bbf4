"""More scripts of ``examples/scripts``, some with large packages: killed, held, and as if they had not been.

``make test-scripts`` types them with those of ``tests/integration/test_scripts.py``.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
import torch

from images.lock_files import PYTORCH_INDEX
from images.store import ImageStore
from tests.fakes.daemon.service import Service, service
from tests.fakes.patience import patience
from tests.fakes.workloads.scripts import Script, assert_equal_weights, place, run_disturbed, run_whole

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

EXACT: Final = (
    Script("plain", r"^.*step 30 ", None),
    Script("tracked", r"^step 20 ", None),
    Script("huggingface", r"\D12/40 ", r"\D1[0-9]/40 ", "out/final/model.safetensors"),
    Script("lightning", r"^epoch 4 ", r"^epoch [5-9] "),
    Script("torchrun", r"^epoch 5 ", r"^epoch [6-9] ", "final.pt"),
    Script("shell", r"^step 300/", r"^step [4-9]00/"),
    Script("accelerate", r"^step 100 ", r"^step [0-9]+ "),
    Script("jax", r"^step 400 ", r"^step [0-9]+ ", "final.npz"),
    Script("notebook", r"^500 ", r"^(?:9[0-9]{2}|[0-9]{4}) ", "final.pt", "progress.txt"),
    Script("src_layout", r"^.*step 300 ", r"^.*step [0-9]+ ", "runs/final.pt"),
)
CHAR_GPT: Final = Script("char_gpt", r"^iter 70:", r"^iter 220:", "out/ckpt.pt")
WORD_LM: Final = Script("word_lm", r"^\| end of epoch   2", r"^\| end of epoch   4", "model.pt")


@pytest.fixture(scope="module")
def daemon(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    del engine
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with service(executor="docker", **indexes()) as made:
        write_digits(made.root / "mnist" / "data" / "MNIST" / "raw")
        yield made.start()


@pytest.mark.parametrize("script", EXACT, ids=lambda script: script.name)
def test_a_script_that_is_disturbed_ends_with_the_weights_of_one_that_is_not(
    daemon: Service, script: Script
) -> None:
    assert_equal_weights(daemon, script, run_whole(daemon, script), run_disturbed(daemon, script))


def test_mnist_with_the_torchvision_of_its_torch_begins_again_and_ends_alike(daemon: Service) -> None:
    script = Script("mnist", r"^Train Epoch: 3 ", r"^Train Epoch: 5 ", "mnist_cnn.pt")
    assert_equal_weights(daemon, script, run_whole(daemon, script), run_disturbed(daemon, script))


def indexes() -> dict[str, Any]:
    """Return settings for a machine that reaches PyTorch's index, or one that has PyPI alone."""
    try:
        with urlopen(f"{PYTORCH_INDEX}/cpu/torchvision/", timeout=patience(10)):  # noqa: S310
            return {}
    except OSError:
        return {"torch_indexes": {"cpu": None}}


def test_a_script_that_saves_no_generator_goes_on_where_it_saved_and_ends(daemon: Service) -> None:
    job = run_disturbed(daemon, CHAR_GPT)
    assert "step 50:" in daemon.log(job, 2)
    assert "step 0:" not in daemon.log(job, 2) + daemon.log(job, 3)
    assert torch.load(place(daemon, job) / CHAR_GPT.final)["iter_num"] == 600


def test_a_script_without_checkpoints_begins_again_and_ends_alike(daemon: Service) -> None:
    whole, disturbed = run_whole(daemon, WORD_LM), run_disturbed(daemon, WORD_LM)
    said = [daemon.log(whole).splitlines()[-1], daemon.log(disturbed, 3).splitlines()[-1]]
    assert said[0] == said[1]
    assert said[0].startswith("| End of training | test loss ")


def write_digits(directory: Path) -> None:
    """Write files in MNIST's format: blots whose place depends on the label."""
    directory.mkdir(parents=True)
    draw = torch.Generator().manual_seed(0)
    for name, count in (("train", 1200), ("t10k", 200)):
        labels = torch.randint(10, (count,), generator=draw)
        images = torch.randint(60, (count, 28, 28), generator=draw, dtype=torch.uint8)
        for image, label in zip(images, labels.tolist(), strict=True):
            image[2 * label : 2 * label + 6, 8:20] += 180
        header = struct.pack(">iiii", 0x803, count, 28, 28)
        (directory / f"{name}-images-idx3-ubyte").write_bytes(header + images.numpy().tobytes())
        header = struct.pack(">ii", 0x801, count)
        (directory / f"{name}-labels-idx1-ubyte").write_bytes(
            header + labels.to(torch.uint8).numpy().tobytes()
        )
