"""The ways of attending and of keeping activations are one model."""

import pytest
import torch

from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import gradient, make

WAYS = [
    {"attention": "cached_mask"},
    {"attention": "rebuilt_mask"},
    {"activation_checkpointing": True},
    {"attention": "cached_mask", "activation_checkpointing": True},
]


@pytest.mark.parametrize("profile", WAYS, ids=str)
def test_every_way_gives_the_same_loss_and_gradient(job: JobDir, profile: dict[str, object]) -> None:
    plan = {"dropout": 0.0, "layers": 2}
    plain, other = make(job, workload=plan), make(job, workload=plan, profile=profile)
    torch.testing.assert_close(gradient(other), gradient(plain), rtol=1e-5, atol=1e-5)
    for step in range(3):
        assert other.update(step)[0] == pytest.approx(plain.update(step)[0], abs=1e-5)


def test_recomputed_activations_have_the_same_dropout(job: JobDir) -> None:
    plain, recomputed = make(job), make(job, profile={"activation_checkpointing": True})
    for step in range(3):
        assert recomputed.update(step)[0] == pytest.approx(plain.update(step)[0], abs=1e-5)


@pytest.mark.parametrize(("attention", "built"), [("cached_mask", 1), ("rebuilt_mask", 3), ("fused", 0)])
def test_a_mask_is_built_once_or_every_time_or_never(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, attention: str, built: int
) -> None:
    training = make(job, profile={"attention": attention})
    masks: list[int] = []
    triu = torch.Tensor.triu

    def counted(self: torch.Tensor, diagonal: int) -> torch.Tensor:
        masks.append(diagonal)
        return triu(self, diagonal)

    monkeypatch.setattr(torch.Tensor, "triu", counted)
    for step in range(3):
        training.update(step)
    assert len(masks) == built


@pytest.mark.parametrize("attention", ["fused", "cached_mask", "rebuilt_mask"])
def test_no_way_sees_the_future(job: JobDir, attention: str) -> None:
    model = make(job, profile={"attention": attention}).workload.model.eval()
    tokens = torch.arange(8)[None]
    other = tokens.clone()
    other[0, 5:] = 200
    with torch.inference_mode():
        assert model(tokens)[0, :5].equal(model(other)[0, :5])
        assert not model(tokens)[0, 5:].equal(model(other)[0, 5:])


@pytest.mark.parametrize("attention", ["cached_mask", "rebuilt_mask"])
def test_a_mask_works_under_lower_precision(job: JobDir, attention: str) -> None:
    training = make(job, profile={"attention": attention, "precision": "bf16"})
    assert training.update(0)[0] == pytest.approx(make(job).update(0)[0], rel=1e-2)
