"""Pairs in one sequence: drawn as functions of the step, and one loss in every arm."""
# ruff: noqa: N806 - tensors carry their shape

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
from jobs.workloads.pair_sequence.network import BETWEEN, HIDDEN, QUESTION
from jobs.workloads.pair_sequence.sequences import AllPairs, ListedPairs
from jobs.workloads.pair_sequence.workload import PairReader
from jobs.workloads.protocol import BuildContext, build
from tests.fakes.workloads.small_sets import small_set
from tests.unit.jobs.workloads.bare_loop import evaluate, gradients, same, train

TINY = {
    "form": "sequence",
    "batch_size": 6,
    "layers": 2,
    "heads": 2,
    "width": 16,
    "length": 16,
    "eval_batches": 6,
}


@pytest.fixture(scope="module")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_set("pair_classifier", tmp_path_factory.mktemp("data") / "set")


def make(
    data: Path, *, plan: Mapping[str, object] | None = None, cache: Path | None = None, **switches: object
) -> PairReader:
    settings = {**TINY, "data": str(data), **(plan or {})}
    profile = Profile.model_validate(switches)
    made = build(PairClassifier.model_validate(settings), BuildContext(3, Switches(profile), cache))
    assert isinstance(made, PairReader)
    return made


# --- Batches


def test_a_batch_is_the_same_in_two_sources_and_in_any_order(molecules: Path) -> None:
    one, other = make(molecules).source, pickle.loads(pickle.dumps(make(molecules).source))  # noqa: S301
    later, earlier = one.batch(7), one.batch(2)
    assert same(other.batch(2), earlier)
    assert same(other.batch(7), later)
    assert not same(earlier, later)
    assert same(one.held_out(1), other.held_out(1))
    assert one.resident_bytes is None


def test_a_sequence_holds_both_molecules_and_the_other_order_swaps_them(molecules: Path) -> None:
    tokens = make(molecules, plan={"masked": 0}).source.batch(0)["tokens"]
    assert tokens.shape == (6, 2, 32)
    assert (tokens[..., 15] == BETWEEN).all()
    assert (tokens[..., 31] == QUESTION).all()
    assert tokens[:, 0, :15].equal(tokens[:, 1, 16:31])
    assert tokens[:, 0, 16:31].equal(tokens[:, 1, :15])


def test_characters_of_the_molecules_are_hidden_in_training_alone(molecules: Path) -> None:
    plain = make(molecules, plan={"masked": 0}).source
    source = make(molecules, plan={"masked": 0.5}).source
    tokens, whole = source.batch(0)["tokens"], plain.batch(0)["tokens"]
    changed = tokens != whole
    assert 0.2 < float(changed.sum() / (whole > BETWEEN).sum()) < 0.8
    assert (tokens[changed] == HIDDEN).all()
    assert same(source.held_out(0), plain.held_out(0))


def values(count: int = 40) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 5


@pytest.mark.parametrize("threshold", [0.0, 0.7, 2.0])
def test_the_partners_of_every_text_are_counted_without_a_list_of_pairs(threshold: float) -> None:
    value_M = values()
    pairs = AllPairs.of(value_M, threshold)
    ahead_MM = value_M[:, None] - value_M[None, :]
    near_MM = ahead_MM.abs() <= threshold
    assert pairs.similar == (int(near_MM.sum()) - len(value_M)) // 2
    first_M = ((ahead_MM > 0) & ~near_MM).sum(dim=1)
    assert pairs.partners[FIRST].equal(first_M[pairs.order_M])
    assert pairs.count == 40 * 39 // 2


def test_balanced_pairs_have_equally_many_of_each_answer_and_all_of_its_pairs() -> None:
    pairs = AllPairs.of(values(12), 0.5)
    drawn_R2, answers_R = pairs.draw(6000, torch.Generator().manual_seed(0), balanced=True)
    shares = torch.bincount(answers_R, minlength=3) / 6000
    assert torch.allclose(shares, torch.full((3,), 1 / 3), atol=0.03)
    assert (drawn_R2[:, 0] != drawn_R2[:, 1]).all()
    assert len({tuple(pair) for pair in drawn_R2.tolist()}) == 12 * 11


def test_pairs_as_they_come_are_of_all_texts() -> None:
    pairs = AllPairs.of(values(6), 0.5)
    drawn_R2, _ = pairs.draw(600, torch.Generator().manual_seed(0), balanced=False)
    assert len({tuple(pair) for pair in drawn_R2.tolist()}) == 6 * 5


def test_an_answer_that_no_pair_has_is_not_drawn() -> None:
    apart = AllPairs.of(torch.tensor([0.0, 5.0, 10.0], dtype=torch.float64), 1.0)
    assert SIMILAR not in apart.draw(100, torch.Generator().manual_seed(0), balanced=True)[1]


def test_listed_pairs_are_balanced_too() -> None:
    answers_P = torch.tensor([FIRST] * 90 + [SECOND] * 10)
    pairs = ListedPairs(torch.arange(200).view(100, 2), answers_P)
    plain = pairs.draw(2000, torch.Generator().manual_seed(0), balanced=False)[1]
    drawn_R2, balanced = pairs.draw(2000, torch.Generator().manual_seed(0), balanced=True)
    assert float((plain == SECOND).float().mean()) == pytest.approx(0.1, abs=0.03)
    assert float((balanced == SECOND).float().mean()) == pytest.approx(0.5, abs=0.05)
    assert ((drawn_R2[:, 0] >= 180) == (balanced == SECOND)).all()


# --- One loss in every arm


@pytest.mark.parametrize(
    "switches",
    [{"last_position_only": False}, {"conversion": "each_use"}, {"activation_checkpointing": True}],
    ids=str,
)
def test_a_switch_changes_neither_batch_nor_loss_nor_gradients(
    molecules: Path, switches: dict[str, Any]
) -> None:
    plain, other = make(molecules), make(molecules, **switches)
    assert same(plain.source.batch(4), other.source.batch(4))
    loss, grads = gradients(plain, plain.source.batch(4))
    loss_too, grads_too = gradients(other, other.source.batch(4))
    assert loss_too == pytest.approx(loss, rel=1e-6)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(grads, grads_too, strict=True))


def test_the_positions_of_the_vocabulary_are_counted(molecules: Path) -> None:
    for on, positions in ((True, 1), (False, 32)):
        switches = Switches(Profile(last_position_only=on))
        PairReader(PairClassifier.model_validate(TINY | {"data": str(molecules)}), BuildContext(3, switches))
        found = switches.report()["last_position_only"]
        assert found.verified
        assert found.note == f"the vocabulary is computed at {positions} of 32 positions"


def test_parts_of_a_batch_add_up_to_the_whole(molecules: Path) -> None:
    workload = make(molecules)
    batch = workload.source.batch(0)
    loss, grads = gradients(workload, batch)
    loss_too, grads_too = gradients(workload, batch, rows=4)
    assert loss_too == pytest.approx(loss, rel=1e-6)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(grads, grads_too, strict=True))


def test_order_matters_and_costs_make_the_two_orders_agree(molecules: Path) -> None:
    apart = []
    for weight in (0.0, 5.0):
        workload = make(molecules, plan={"swap_weight_start": weight, "swap_weight_end": weight})
        train(workload, 25, 3e-3)
        apart.append(evaluate(workload).metrics["swap_disagreement"])
    assert apart[0] > 1e-3  # not inert: an untrained order is another input
    assert apart[1] < apart[0] / 2


# --- What it learns


def test_it_learns_and_says_so_by_answer_and_as_a_ranking(molecules: Path, tmp_path: Path) -> None:
    workload = make(molecules, plan={"ranked": 8, "batch_size": 16}, cache=tmp_path)
    train(workload, 60, 3e-3)
    found = evaluate(workload)
    assert found.metrics["accuracy"] > found.baseline["accuracy"] + 0.15
    assert found.metrics["ranking_correlation"] > 0.6
    cells = [found.details[name] for name in found.details if name.startswith("confusion")]
    assert sum(cells) == pytest.approx(6 * 16)
    right = sum(found.details[f"confusion_{name}_{name}"] for name in ("first", "second", "similar"))
    assert right / sum(cells) == pytest.approx(found.metrics["accuracy"])
    assert found.lines[1].startswith("Bradley-Terry ranking of 8: ")
    rows = (tmp_path / "ranking.csv").read_text().splitlines()
    assert rows[0] == "rank,text,strength,measured"
    assert [row.split(",")[0] for row in rows[1:]] == list("12345678")


def test_the_molecules_of_a_fold_are_not_trained_on(molecules: Path) -> None:
    folds = [make(molecules, plan={"folds": 3, "fold": fold}) for fold in range(3)]
    tested = [set(one.source.test.part.texts) for one in folds]
    assert not tested[0] & tested[1]
    assert len(set.union(*tested)) == 33
    assert all(set(one.source.train.part.texts).isdisjoint(one.source.test.part.texts) for one in folds)
    assert folds[0].signatures["data"] != folds[1].signatures["data"]


def test_items_are_pairs(molecules: Path) -> None:
    workload = make(molecules)
    assert workload.count(workload.source.batch(0)) == workload.items_per_step == 6
    assert workload.steps_per_epoch == workload.train_items // 6


def test_nothing_to_compare_is_told(tmp_path: Path) -> None:
    (tmp_path / "molecules.csv").write_text("smiles,logs,split\nCC,1,train\nCCC,2,train\nCCO,3,test\n")
    with pytest.raises(InvalidSpec, match=r"data: 1 text\(s\) with split test: there is nothing to compare"):
        make(tmp_path)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"form": "summaries", "ranked": 3}, "has an effect in form: sequence alone"),
        ({"form": "summaries", "balance": "classes"}, "has an effect in form: sequence alone"),
        ({"group": 2}, "has no effect in form: sequence, where a row is one pair"),
        ({"lora": {}}, "is about a pretrained model; give its directory as pretrained"),
        ({"pretrained": "m", "width": 32}, "has no effect on a pretrained model"),
        ({"pretrained": "m", "quantize": "nf4"}, "weights of 4 bits cannot be trained; add lora"),
        ({"pretrained": "m", "trained": ["x"]}, "without lora all parameters are trained"),
        ({"pretrained": "m", "prompt": "{first}"}, r"must have \{second\} once"),
        ({"pretrained": "m", "prompt": "{second}{first}"}, r"must have \{first\} before \{second\}"),
        ({"pretrained": "m", "answers": ["a", "b", "a"]}, "must be three different words"),
        ({"folds": 3}, "fold, which one is tested on, is missing"),
        ({"fold": 0}, "folds, their number, is missing"),
        ({"folds": 3, "fold": 3}, "the 3 folds have the numbers 0 to 2"),
    ],
)
def test_a_field_without_an_effect_is_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PairClassifier.model_validate({"data": "x", "form": "sequence", **fields})


def test_the_json_of_a_plan_that_uses_none_of_it_is_as_before() -> None:
    written = PairClassifier(data="x").model_dump(mode="json")
    assert not {"form", "folds", "pretrained", "lora", "ranked", "balance"} & set(written)
