"""Pairs of molecules: the same work in every arm, and two orders that agree."""

import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from jobs.contract import Profile
from jobs.contract.plans.pair_classifier import PairClassifier
from jobs.data.pairs import FIRST, SECOND, SIMILAR
from jobs.training.failures import InvalidSpec
from jobs.training.switches import Switches
from jobs.workloads import pair_classifier
from jobs.workloads.pair_classifier import PairComparator, swap_weight
from jobs.workloads.protocol import BuildContext
from tests.unit.jobs.workloads.bare_loop import evaluate, gradients, same, train

TINY = {"batch_size": 4, "group": 3, "layers": 2, "heads": 2, "width": 16, "length": 16, "eval_batches": 4}

ARMS = [
    {"encode_once": False},
    {"last_position_only": False},
    {"conversion": "each_use"},
    {"activation_checkpointing": True},
    {"encode_once": False, "last_position_only": False, "conversion": "each_use"},
]


@pytest.fixture(scope="module")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chains of carbon and oxygen: the more carbon, the less soluble."""
    file = tmp_path_factory.mktemp("data") / "molecules.csv"
    rows = ["smiles,logs,split"]
    for carbons in range(1, 12):
        for oxygens in range(3):
            split = "test" if (carbons + oxygens) % 4 == 0 else "train"
            rows.append(f"{'C' * carbons}{'O' * oxygens},{oxygens - 0.7 * carbons},{split}")
    file.write_text("\n".join(rows) + "\n")
    return file


def build(molecules: Path, *, plan: Mapping[str, object] | None = None, **switches: object) -> PairComparator:
    settings = {**TINY, "data": str(molecules), **(plan or {})}
    profile = Profile.model_validate(switches)
    return PairComparator(PairClassifier.model_validate(settings), BuildContext(3, Switches(profile)))


def logits(*rows: list[float]) -> Tensor:
    """Return the logits of one pair in two orders."""
    return torch.tensor(rows, dtype=torch.float32)[None, None]


# --- The batch is a function of the step


def test_a_batch_is_the_same_in_two_sources_and_in_any_order(molecules: Path) -> None:
    one, other = build(molecules).source, pickle.loads(pickle.dumps(build(molecules).source))  # noqa: S301
    later, earlier = one.batch(7), one.batch(2)
    assert same(other.batch(2), earlier)
    assert same(other.batch(7), later)
    assert not same(earlier, later)
    assert same(one.held_out(1), other.held_out(1))


def test_no_molecule_meets_itself_even_if_a_step_needs_several_shuffles(molecules: Path) -> None:
    source = build(molecules, plan={"batch_size": 40, "group": 7, "masked": 0}).source
    tokens = source.batch(0)["tokens"]
    assert tokens.shape == (40, 7, 16)
    assert all(len({tuple(row) for row in group}) == 7 for group in tokens.tolist())


def test_characters_are_hidden_in_training_alone_and_never_the_question(molecules: Path) -> None:
    plain = build(molecules, plan={"masked": 0}).source
    source = build(molecules, plan={"masked": 0.5}).source
    tokens, whole = source.batch(0)["tokens"], plain.batch(0)["tokens"]
    changed = tokens != whole
    assert 0.2 < float(changed.sum() / (whole > 2).sum()) < 0.8
    assert (whole[changed] > 2).all()
    assert (tokens[..., -1] == whole[..., -1]).all()
    assert same(source.held_out(0), plain.held_out(0))


def test_the_answer_is_about_the_values_that_were_measured() -> None:
    values = torch.tensor([[3.0, 1.0, 2.5]])
    assert pair_classifier.answers(values, 1.0).tolist() == [[FIRST, SIMILAR, SECOND]]
    assert pair_classifier.answers(values, 2.0).tolist() == [[SIMILAR, SIMILAR, SIMILAR]]


def test_the_weight_of_the_swap_rises_over_half_of_the_steps() -> None:
    plan = PairClassifier(data="x", steps=100, swap_weight_start=1, swap_weight_end=3)
    assert [swap_weight(plan, step) for step in (0, 25, 50, 99)] == [1, 2, 3, 3]


# --- Two orders


def test_orders_that_say_the_same_thing_do_not_disagree() -> None:
    assert pair_classifier.disagreement(logits([2, 1, 0], [1, 2, 0])).item() == pytest.approx(0)


def test_disagreement_is_the_mean_of_both_divergences() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.6, 0.1])
    both = logits(p.log().tolist(), q[[1, 0, 2]].log().tolist())
    expected = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
    assert pair_classifier.disagreement(both).item() == pytest.approx(expected.item())


@torch.inference_mode()
def test_swapping_every_pair_leaves_the_loss_as_it_is(molecules: Path) -> None:
    workload = build(molecules)
    batch = workload.source.batch(0)
    turned = batch | {
        "tokens": batch["tokens"].flip(1),  # the pairs (0,1) (0,2) (1,2) become (2,1) (2,0) (1,0)
        "answers": pair_classifier.swapped(batch["answers"]).flip(1),
    }
    assert torch.allclose(workload.loss_sum(turned), workload.loss_sum(batch), rtol=1e-5)


def test_the_two_orders_agree_more_when_disagreement_costs(molecules: Path) -> None:
    apart = []
    for weight in (0.0, 20.0):
        workload = build(molecules, plan={"swap_weight_start": weight, "swap_weight_end": weight})
        train(workload, 30, 3e-3)
        apart.append(evaluate(workload).metrics["swap_disagreement"])
    assert apart[1] < apart[0] / 2


# --- Equal work in every arm


@pytest.mark.parametrize("switches", ARMS, ids=str)
def test_a_switch_changes_neither_batch_nor_loss_nor_gradients(
    molecules: Path, switches: dict[str, Any]
) -> None:
    plain, other = build(molecules), build(molecules, **switches)
    assert same(plain.source.batch(4), other.source.batch(4))
    loss, grads = gradients(plain, plain.source.batch(4))
    loss_too, grads_too = gradients(other, other.source.batch(4))
    assert loss_too == pytest.approx(loss, rel=1e-6)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(grads, grads_too, strict=True))


@pytest.mark.parametrize("encode_once", [True, False])
def test_parts_of_a_batch_add_up_to_the_whole(molecules: Path, *, encode_once: bool) -> None:
    workload = build(molecules, encode_once=encode_once)
    batch = workload.source.batch(0)
    loss, grads = gradients(workload, batch)
    loss_too, grads_too = gradients(workload, batch, rows=3)
    assert loss_too == pytest.approx(loss, rel=1e-6)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(grads, grads_too, strict=True))


def test_a_step_leaves_its_batch_as_it_was(molecules: Path) -> None:
    workload = build(molecules)
    tokens = workload.source.train.tokens_ML
    assert tokens is not None
    before = tokens.clone()
    train(workload, 2, 1e-3)
    evaluate(workload)
    assert tokens.equal(before)


def test_the_switches_say_what_they_saw(molecules: Path) -> None:
    workload_switches = []
    for on in (True, False):
        switches = Switches(Profile(encode_once=on, last_position_only=on))
        plan = PairClassifier.model_validate(TINY | {"data": str(molecules)})
        PairComparator(plan, BuildContext(3, switches))
        workload_switches.append(switches.report())
    once, always = workload_switches
    assert once["encode_once"].verified
    assert once["encode_once"].note.startswith("3 encodings for 3 pairs of 3 molecules")
    assert always["encode_once"].note.startswith("12 encodings for 3 pairs")
    assert once["last_position_only"].note == "the head looks at 1 of 16 positions"
    assert always["last_position_only"].note == "the head looks at 16 of 16 positions"


# --- What it learns


def test_it_learns_what_the_majority_cannot_know(molecules: Path) -> None:
    workload = build(molecules)
    train(workload, 40, 3e-3)
    evaluation = evaluate(workload)
    assert evaluation.higher_is_better
    assert evaluation.metrics["accuracy"] > evaluation.baseline["accuracy"] + 0.15
    assert evaluation.metrics["eval_loss"] < evaluation.baseline["eval_loss"]


def test_the_baseline_is_the_best_constant_answer(molecules: Path) -> None:
    workload = build(molecules)
    sums = {"count": 10, "similar": 2, "correct": 7, "consistent": 9, "disagreement": 1, "nats": 5}
    sums |= dict.fromkeys(pair_classifier._CELLS, 1)
    evaluation = workload.judge(sums)
    assert evaluation.metrics["accuracy"] == pytest.approx(0.7)
    assert evaluation.baseline["accuracy"] == pytest.approx(0.4)  # always first: right in one order of eight
    assert evaluation.baseline["swap_consistency"] == 0
    assert workload.judge(sums | {"similar": 8}).baseline["accuracy"] == pytest.approx(0.8)
    assert workload.judge(sums | {"similar": 8}).baseline["swap_consistency"] == 1


def test_the_shares_of_the_answers_are_counted_over_all_pairs() -> None:
    values = torch.tensor([0.0, 5.0, 0.5, 9.0], dtype=torch.float64)
    assert pair_classifier.shares(values, 1.0)["similar"] == pytest.approx((1 + 1) / (6 + 2))
    assert sum(pair_classifier.shares(values, 1.0).values()) < 1
    assert math.isfinite(math.log(pair_classifier.shares(values, 99.0)["either"]))


# --- What it is


def test_items_are_pairs(molecules: Path) -> None:
    workload = build(molecules)
    molecule_count = len(workload.source.train.smiles)
    assert workload.count(workload.source.batch(0)) == workload.items_per_step == 4 * 3
    assert workload.train_items == molecule_count * (molecule_count - 1) // 2
    assert workload.steps_per_epoch == workload.train_items // 12


def test_a_resident_source_makes_the_same_batches(molecules: Path) -> None:
    source = build(molecules).source
    assert source.resident_bytes == 33 * 16
    assert same(source.on(torch.device("cpu")).batch(3), source.batch(3))
    on_demand = build(molecules, conversion="each_use").source
    assert on_demand.resident_bytes is None
    assert same(on_demand.on(torch.device("cpu")).batch(3), source.batch(3))


def test_signatures_tell_a_change_of_model_from_a_change_of_aim(molecules: Path) -> None:
    before = build(molecules).signatures
    aim = build(molecules, plan={"threshold": 2.0}).signatures
    model = build(molecules, plan={"heads": 4}).signatures
    assert [name for name in before if before[name] != aim[name]] == ["schedule"]
    assert [name for name in before if before[name] != model[name]] == ["model"]


def test_too_few_molecules_for_a_group_are_told(molecules: Path) -> None:
    with pytest.raises(
        InvalidSpec, match=r"data: \d+ molecule\(s\) with split test make no group of 20; give"
    ):
        build(molecules, plan={"group": 20})


def test_a_repeated_molecule_is_announced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "molecules.csv"
    chains = [f"{'C' * n},{n},{split}" for n in range(1, 5) for split in ("train", "test")]
    others = [f"{'N' * n},{n},test" for n in range(1, 4)]
    file.write_text("\n".join(["smiles,logs,split", *chains, *others]))
    workload = build(file)
    assert "4 test molecules are training molecules too, and were left out" in capfd.readouterr().out
    assert len(workload.source.test.smiles) == 3
    assert SIMILAR == 2


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width 10 is not a multiple of heads 4"):
        PairClassifier(data="x", width=10, heads=4)


def test_half_precision_says_about_the_same(molecules: Path) -> None:
    workload = build(molecules)
    batch = workload.source.batch(0)
    exact = workload.loss_sum(batch).detach()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = workload.loss_sum(batch).detach()
    assert rounded.dtype == torch.float32
    assert torch.allclose(exact, rounded, rtol=0.02)
