"""A finished model in the layout of other code, read by that code."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from jobs.checkpoint.exported import export
from jobs.checkpoint.initial import load_initial_weights
from jobs.contract import ExitCode
from jobs.contract.plans.base import Export, InitMap
from jobs.contract.plans.causal_lm import CausalLm
from jobs.training.failures import InvalidSpec, is_disk_full
from jobs.workloads.causal_lm import Transformer
from tests.unit.jobs.conftest import JobDir

NAMES: dict[str, Any] = {"entry": "state_dict", "prefix": "net.", "rename": {"w.": "0."}}


def test_an_exported_state_dict_has_the_names_of_the_other_code_and_comes_back(tmp_path: Path) -> None:
    model, other = nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(2, 3))
    wanted = Export(format="state_dict", file="his.ckpt", **NAMES)
    said = export(wanted, None, model.state_dict(), tmp_path)
    assert said == f"exported as state_dict to {tmp_path}/export: his.ckpt"
    found = torch.load(tmp_path / "export/his.ckpt", weights_only=True)
    assert list(found["state_dict"]) == ["net.w.weight", "net.w.bias"]
    load_initial_weights(tmp_path / "export/his.ckpt", "his.ckpt", other, names=InitMap(**NAMES))
    assert torch.equal(model[0].weight, other[0].weight)


def test_a_tensor_is_written_in_the_parts_of_the_other_code_and_nothing_else(tmp_path: Path) -> None:
    weights = {"a.0.qkv.weight": torch.arange(8.0).view(4, 2), "a.0.norm.weight": torch.ones(2)}
    rename = {"b.*.q.": "a.*.qkv.[1/2]", "b.*.k.": "a.*.qkv.[2/2]"}
    export(Export(format="state_dict", rename=rename, partial=True), None, weights, tmp_path)
    found = torch.load(tmp_path / "export/model.pt", weights_only=True)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "b.0.q.weight": [[0, 1], [2, 3]],
        "b.0.k.weight": [[4, 5], [6, 7]],
    }


@pytest.mark.parametrize(
    ("rename", "fact"),
    [
        ({"q.": "w.[1/2]"}, "w.x lacks its part 2 of 2; add it"),
        ({"q.": "w.[1/2]", "k.": "w.[2/2]"}, "w.x has no 2 equal parts"),
        ({"q.": "v."}, "names no tensor of this model"),
    ],
)
def test_names_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, rename: dict[str, str], fact: str
) -> None:
    with pytest.raises(InvalidSpec, match=fact):
        export(
            Export(format="state_dict", rename=rename, partial=True), None, {"w.x": torch.ones(3)}, tmp_path
        )


def test_an_export_replaces_the_one_before_as_a_whole(tmp_path: Path) -> None:
    weights = nn.Linear(1, 1).state_dict()
    for name in ("one.pt", "two.pt"):
        export(Export(format="state_dict", file=name), None, weights, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["two.pt"]


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    wanted = Export(format="state_dict", rename={"x": "weight", "x ": "bias"})
    weights = {"weight": torch.ones(1), "x": torch.ones(1)}
    with pytest.raises(InvalidSpec, match="two tensors would be x"):
        export(wanted, None, weights, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("full_disk")
def test_an_export_on_a_full_disk_says_that_it_is_full(tmp_path: Path) -> None:
    with pytest.raises((OSError, RuntimeError)) as failed:
        export(Export(format="state_dict"), None, {"a": torch.zeros(10_000)}, tmp_path)
    assert is_disk_full(failed.value)


def test_a_layout_that_the_model_has_not_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="no layout of huggingface"):
        export(Export(format="huggingface"), None, nn.Linear(1, 1).state_dict(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore")
def test_transformers_computes_the_same_with_the_exported_language_model(job: JobDir) -> None:
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    assert job.train(workload={"export": {"format": "huggingface"}, "layers": 2}) == 0
    plan = job.spec(workload={"layers": 2})
    assert isinstance(plan.workload, CausalLm)
    ours = Transformer(plan.workload, plan.profile).eval()
    ours.load_state_dict(torch.load(job.lineage() / "final/weights.pt"))
    his = transformers.GPT2LMHeadModel.from_pretrained(str(job.lineage() / "export")).eval()
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.allclose(ours(tokens), his(tokens).logits, atol=1e-5)


def test_a_model_without_that_layout_is_refused_when_the_file_is_read(job: JobDir) -> None:
    with pytest.raises(ValueError, match="format: this model is written as huggingface, state_dict"):
        job.spec(workload={"export": {"format": "peft"}})


def test_names_that_do_not_fit_are_told_before_the_first_step(job: JobDir) -> None:
    wanted = {"format": "state_dict", "rename": {"wte.": "tokens."}, "partial": True}
    assert job.train(workload={"export": wanted}) == ExitCode.INVALID_SPEC
    assert job.result().message == "workload.export.rename: names no tensor of this model; correct it"
    assert job.names() == set()


@pytest.mark.parametrize(
    "killed_in", ["jobs.training.loop.export", "jobs.checkpoint.saver.Checkpoints.publish_final"]
)
def test_a_training_that_is_killed_at_its_very_end_has_its_export_afterwards(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(killed_in, kill)
        with pytest.raises(KeyboardInterrupt):
            job.train(workload={"export": {"format": "state_dict"}})
    assert job.train(workload={"export": {"format": "state_dict"}}) == 0
    found = torch.load(job.lineage() / "export/model.pt", weights_only=True)
    final = torch.load(job.lineage() / "final/weights.pt", weights_only=True)
    assert all(torch.equal(final[name], tensor) for name, tensor in found.items())
    assert found.keys() == final.keys()


def test_names_of_weights_need_weights(job: JobDir) -> None:
    with pytest.raises(ValueError, match="init_from names none"):
        job.spec(workload={"init_map": {"partial": True}})


@pytest.mark.parametrize("field", ["early_stopping", "lr_plateau"])
def test_the_name_of_a_watched_metric_is_checked_before_the_first_step(job: JobDir, field: str) -> None:
    watching = {field: {"metric": "sharpe", "better": "higher", "patience": 1}, "eval_every": 4}
    assert job.train(workload=watching) == ExitCode.INVALID_SPEC
    assert job.result().message == (
        f"workload.{field}.metric: there is no sharpe; an evaluation has eval_loss, perplexity"
    )
    assert job.names() == set()
    assert (
        job.train(
            workload={field: {"metric": "perplexity", "better": "lower", "patience": 9}, "eval_every": 4}
        )
        == 0
    )
