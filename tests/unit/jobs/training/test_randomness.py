"""The same purpose gives the same draws, and another purpose gives others."""

import random

import torch

from jobs.training.randomness import derive, draw, seed_all


def drawn(seed: int, *purpose: str | int) -> tuple[float, float]:
    seed_all(seed, *purpose)
    return random.random(), float(torch.rand(()))  # noqa: S311 - that is the generator in question


def test_seeding_makes_draws_a_function_of_seed_and_purpose() -> None:
    assert drawn(1, 5) == drawn(1, 5)
    assert len({drawn(1, 5), drawn(1, 6), drawn(2, 5), drawn(1, "batch", 5)}) == 4


def test_a_private_draw_leaves_the_global_generator_alone() -> None:
    seed_all(1, 1)
    undisturbed = float(torch.rand(()))
    seed_all(1, 1)
    draw(10, 5, 1, "batch", 1)
    assert float(torch.rand(())) == undisturbed


def test_seeds_are_stable_between_versions() -> None:
    """A change here would silently change what every resumed training draws."""
    assert derive(7, "batch", 3) == derive(7, "batch:3")
    assert derive(0, 0) == 7689419447139100721
