"""Builds of torch that a driver and its GPUs can run."""

import pytest

from runner.core.cuda import (
    Gpu,
    LockChoice,
    choose_lock,
    driver_advice,
    driver_problem,
    gpu_problem,
    launch_problem,
    parse_version,
)

LOCKS = {"cuda": (13, 0), "cuda-12.6": (12, 6)}
VOLTA, HOPPER, BLACKWELL = Gpu("GPU-0", (7, 0)), Gpu("GPU-1", (9, 0)), Gpu("GPU-2", (12, 0))


def test_versions_are_read_up_to_what_is_no_number() -> None:
    assert [parse_version(text) for text in ("20.10.24+dfsg1", "28.2.2-ce", "", "x.1", "580.65.06")] == [
        (20, 10, 24), (28, 2, 2), (), (), (580, 65, 6),
    ]  # fmt: skip


def test_a_driver_that_is_too_old_is_named_with_what_is_needed_and_what_to_do() -> None:
    assert driver_problem("580.65.06", (13, 0)) is None
    assert driver_problem("550.54.14", (13, 0)) == (
        "driver 550.54.14 is too old: the image's torch needs CUDA 13.0; update the driver to 580.65 or later"
        ", or make the lock for CUDA 12.6 (runner images lock cuda-12.6)"
    )
    assert driver_problem("470.1", (12, 6)) == (
        "driver 470.1 is too old: the image's torch needs CUDA 12.6; update the driver to 525.60 or later"
    )


def test_no_older_lock_is_advised_where_it_would_not_run_either() -> None:
    assert driver_advice("470.1", (13, 0)) == "update the driver to 580.65 or later"
    assert driver_advice(None, (13, 0)) == "update the driver to 580.65 or later"
    assert driver_advice("999.1", (99, 0)).startswith("update the driver, or make the lock")


@pytest.mark.parametrize(
    ("gpu", "cuda", "step"),
    [
        (VOLTA, (13, 0), "make the lock for CUDA 12.6 (runner images lock cuda-12.6)"),
        (Gpu("GPU-0", (3, 5)), (13, 0), "take another GPU"),
        (BLACKWELL, (12, 6), "take another GPU"),
        (VOLTA, (12, 6), None),
        (HOPPER, (13, 2), None),
        (VOLTA, (12, 8), None),  # which no wheels of this torch have: nothing is known
        (Gpu("GPU-0"), (13, 0), None),
    ],
)
def test_a_gpu_needs_code_in_the_wheels(gpu: Gpu, cuda: tuple[int, int], step: str | None) -> None:
    problem = gpu_problem(gpu, cuda)
    assert (problem or "").rpartition("; ")[2] == (step or "")
    if problem:
        assert problem.startswith(f"{gpu.name} has compute capability ")


@pytest.mark.parametrize(
    ("driver", "gpus", "name"),
    [
        ("580.65.06", (HOPPER,), "cuda"),
        ("580.65.06", (VOLTA,), "cuda-12.6"),
        ("580.65.06", (VOLTA, HOPPER), "cuda-12.6"),  # which has code for both
        ("580.65.06", (VOLTA, BLACKWELL), "cuda"),  # none has code for both: the newest of equals
        ("550.54.14", (HOPPER,), "cuda-12.6"),
        ("550.54.14", (BLACKWELL,), "cuda-12.6"),  # the launch says that it has no code for it
        ("580.65.06", (Gpu("GPU-0"),), "cuda"),  # which does not say its capability
        (None, (), "cuda"),
    ],
)
def test_the_newest_lock_that_fits_driver_and_gpus_is_chosen(
    driver: str | None, gpus: tuple[Gpu, ...], name: str
) -> None:
    assert choose_lock(LOCKS, driver, gpus) == LockChoice(name)


def test_a_driver_too_old_for_every_lock_is_a_problem_of_the_oldest() -> None:
    choice = choose_lock(LOCKS, "470.256.02", (HOPPER,))
    assert choice.name is None
    assert "driver 470.256.02 is too old: the image's torch needs CUDA 12.6" in choice.problem


def test_a_launch_is_compared_with_the_driver_first() -> None:
    assert launch_problem((13, 0), "580.65.06", [HOPPER]) is None
    assert launch_problem((13, 0), None, [HOPPER]) is None
    assert "driver 550" in (launch_problem((13, 0), "550.1", [VOLTA]) or "")
    assert "GPU-0 has" in (launch_problem((13, 0), "580.65.06", [HOPPER, VOLTA]) or "")
