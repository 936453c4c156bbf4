"""The lock of the CUDA image follows from the driver that is there; made-up locks, made-up drivers."""

from pathlib import Path

import pytest

from images.lock_files import available
from images.settings import ImageSettings
from runner.adapters.image_locks import choose_for_this_machine, cuda_of_images
from runner.base.errors import Unavailable
from runner.core.doctor import NvidiaFacts, NvidiaGpu

OLDER = "torch==2.13.0+cu126\nnvidia-cuda-runtime-cu12==12.6.77\n"


@pytest.fixture
def settings(tmp_path: Path) -> ImageSettings:
    (tmp_path / "cuda-12.6.txt").write_text(OLDER)
    return ImageSettings(lock_dir=tmp_path)


@pytest.mark.parametrize(
    ("driver", "capability", "name", "cuda"),
    [
        ("580.65.06", (9, 0), "cuda", (13, 0)),
        ("580.65.06", (7, 0), "cuda-12.6", (12, 6)),
        ("550.54.14", (9, 0), "cuda-12.6", (12, 6)),
        (None, None, "cuda", (13, 0)),
    ],
)
def test_the_driver_chooses_the_lock(
    settings: ImageSettings,
    driver: str | None,
    capability: tuple[int, int] | None,
    name: str,
    cuda: tuple[int, int],
) -> None:
    facts = NvidiaFacts(driver=driver, gpus=(NvidiaGpu("GPU-0", "made up", capability),))
    assert choose_for_this_machine(available("cuda", settings), lambda: facts).name == name
    assert cuda_of_images(settings, lambda: facts) == cuda


def test_a_driver_that_is_too_old_for_all_lets_the_job_wait_and_says_what_to_do() -> None:
    facts = NvidiaFacts(driver="550.54.14")
    with pytest.raises(Unavailable) as refused:
        choose_for_this_machine(available("cuda", ImageSettings()), lambda: facts)
    assert str(refused.value) == (
        "no CUDA image is built: driver 550.54.14 is too old: the image's torch needs CUDA 13.0; update the"
        " driver to 580.65 or later, or make the lock for CUDA 12.6 (runner images lock cuda-12.6)"
    )
    assert cuda_of_images(ImageSettings(), lambda: facts) == (13, 0)


def test_nobody_asks_a_driver_for_other_accelerators(settings: ImageSettings) -> None:
    def fail() -> NvidiaFacts:
        raise AssertionError

    assert choose_for_this_machine(available("cpu", settings), fail).name == "cpu"
    assert choose_for_this_machine(available("rocm", settings), fail).name == "rocm"


def test_a_lock_that_the_settings_name_and_nobody_made_has_no_cuda(settings: ImageSettings) -> None:
    missing = ImageSettings(lock_dir=settings.lock_dir, locks={"cuda": "cuda-13.2"})
    assert cuda_of_images(missing, NvidiaFacts) is None
