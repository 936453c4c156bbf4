"""A training begins with the weights of another one if they fit, and says why if they do not."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from jobs.checkpoint.initial import load_initial_weights, misfit
from jobs.contract import ExitCode
from jobs.contract.plans.base import InitMap
from jobs.training.failures import InvalidSpec
from tests.unit.jobs.conftest import JobDir

FROM = {"init_from": "job/7/final"}
BEST = {"init_from": "job/7/best"}


def test_the_weights_of_a_finished_model_are_where_another_training_begins(
    job: JobDir, capfd: pytest.CaptureFixture[str]
) -> None:
    assert job.train() == 0
    trained = job.run_weights()
    more = {**FROM, "learning_rate": 1e-30, "weight_decay": 0, "steps": 1}
    weights = str(job.lineage() / "final")
    assert job.train(lineage=2, workload=more, init_weights=weights) == 0
    assert "begins with the weights of job/7/final, step 8" in capfd.readouterr().out
    before, after = (torch.load(job.lineage(number) / "final/weights.pt") for number in (1, 2))
    assert all(torch.allclose(before[name], after[name], atol=1e-20) for name in before)
    assert job.run_weights() == trained


@pytest.mark.parametrize("directory", ["best-00000004", "step-00000004"])
def test_best_weights_and_whole_checkpoints_are_read_too(
    job: JobDir, directory: str, capfd: pytest.CaptureFixture[str]
) -> None:
    every = {"eval_every": 4, "steps": 4}
    assert job.train(workload=every) == 0
    weights = str(job.lineage() / directory)
    assert job.train(lineage=2, workload=BEST, init_weights=weights) == 0
    assert "begins with the weights of job/7/best, step 4" in capfd.readouterr().out


def test_a_resume_does_not_load_them_again(job: JobDir, capfd: pytest.CaptureFixture[str]) -> None:
    assert job.train() == 0
    weights = str(job.lineage() / "final")
    straight, killed = {**FROM, "steps": 8}, {**FROM, "steps": 4}
    assert job.train(lineage=2, workload=straight, init_weights=weights) == 0
    assert job.train(lineage=3, workload=killed, init_weights=weights) == 0
    capfd.readouterr()
    assert job.train(lineage=3, workload=straight) == 0  # the weights are gone by now, and are not missed
    said = capfd.readouterr().out
    assert "resumed from step 4" in said
    assert "begins with" not in said


def test_a_training_without_its_weights_does_not_begin(job: JobDir) -> None:
    assert job.train(workload=FROM) == ExitCode.INVALID_SPEC
    said = "workload.init_from: job/7/final: no such weights: none were published, or they were removed"
    assert job.result().message == said
    assert job.names() == set()


def test_weights_of_another_shape_are_refused_by_name(job: JobDir) -> None:
    assert job.train() == 0
    weights = str(job.lineage() / "final")
    wider = {**FROM, "width": 16}
    assert job.train(lineage=2, workload=wider, init_weights=weights) == ExitCode.INVALID_SPEC
    said = job.result(2).message
    assert said.startswith("workload.init_from: job/7/final: the weights do not fit this model: ")
    assert re.search(r"is \d+ x 8 float32 there and \d+ x 16 float32 here", said)
    assert job.names(2) == set()


def test_torn_weights_are_refused(job: JobDir) -> None:
    assert job.train() == 0
    final = job.lineage() / "final"
    (final / "weights.pt").write_bytes(b"torn")
    assert job.train(lineage=2, workload=FROM, init_weights=str(final)) == ExitCode.INVALID_SPEC
    assert "workload.init_from: job/7/final: weights.pt: 4 bytes where" in job.result(2).message


def test_a_directory_with_saved_weights_needs_no_manifest(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    torch.save(other.state_dict(), tmp_path / "weights.pt")
    assert load_initial_weights(tmp_path, "models/a", model) == "the weights of models/a"
    assert torch.equal(model.weight, other.weight)


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (None, "no weights.pt, and no checkpoint of this runner, in"),
        ([1, 2], "weights.pt holds no mapping of names to tensors; save model.state_dict()"),
        ({"a": 1}, "weights.pt holds no mapping of names to tensors; save model.state_dict()"),
    ],
)
def test_a_directory_without_weights_is_refused(tmp_path: Path, content: object, fact: str) -> None:
    if content is not None:
        torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(InvalidSpec, match=re.escape(f"workload.init_from: models/a: {fact}")):
        load_initial_weights(tmp_path, "models/a", nn.Linear(2, 3))


def test_what_differs_is_named_but_not_all_of_it() -> None:
    wanted = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.tensor(0), "d": torch.zeros(1)}
    found = {"a": torch.zeros(3), "c": torch.tensor(0.0), "e": torch.zeros(1)}
    said = misfit(found, wanted)
    assert said.startswith("a is 3 float32 there and 2 float32 here, c is a single float32 there and ")
    assert said.endswith("there is no b, and 2 more")
    assert misfit(wanted, wanted) == ""


# --- Files of other code bases


def lightning_file(path: Path, model: nn.Module, **more: object) -> Path:
    """Write a file as Lightning does, with the names that its module has."""
    named = {f"net.{name}": tensor.half() for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": named, "epoch": 3, "optimizer_states": [{"state": {}}], **more}, path)
    return path


@pytest.mark.parametrize("name", ["best.ckpt", "best.pt", "best.pth"])
def test_a_file_of_another_code_base_is_loaded_by_its_names(tmp_path: Path, name: str) -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    place = lightning_file(tmp_path / name, other)
    assert load_initial_weights(place, name, model, names=InitMap(prefix="net.")) == f"the weights of {name}"
    assert torch.equal(model.weight, other.weight.half().float())


def test_beginnings_of_names_are_replaced_by_the_first_that_fits(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    his = {"w.weight": torch.ones(3, 2), "w.bias": torch.ones(3)}
    his |= {f"norm.{name}": torch.zeros(3) for name in ("weight", "bias")}
    torch.save({f"his.{name}": tensor for name, tensor in his.items()}, tmp_path / "a.pt")
    names = InitMap(prefix="his.", rename={"w.": "0.", "norm.": "1.", "n": "wrong"})
    load_initial_weights(tmp_path / "a.pt", "a.pt", model, names=names)
    assert [float(each.flatten()[0]) for each in model.state_dict().values()] == [1, 1, 0, 0]


def test_what_does_not_fit_is_told_and_stays_random_if_the_job_says_partial(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    kept = model[1].weight.clone()
    weights = {"0.weight": torch.ones(3, 2), "0.bias": torch.ones(3), "1.weight": torch.ones(9, 3)}
    torch.save({"model_state_dict": weights}, tmp_path / "a.pt")
    with pytest.raises(InvalidSpec, match=r"9 x 3 float32 there and 4 x 3 float32 here.*partial: true"):
        load_initial_weights(tmp_path / "a.pt", "a.pt", model)
    said = load_initial_weights(tmp_path / "a.pt", "a.pt", model, names=InitMap(partial=True))
    assert said == (
        "the weights of a.pt: 2 of 4 tensors, the rest stays random: 1.weight is 9 x 3 float32 there and"
        " 4 x 3 float32 here, there is no 1.bias"
    )
    assert torch.equal(model[0].weight, torch.ones(3, 2))
    assert torch.equal(model[1].weight, kept)


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("run",))


@pytest.mark.parametrize(
    ("content", "names", "fact"),
    [
        ({"weights": Harmful()}, None, "a.pt holds no mapping of names to tensors"),
        ({"a": 1}, None, "a.pt holds no mapping of names to tensors; save model.state_dict()"),
        ({"a": torch.ones(1)}, InitMap(entry="ema"), "a.pt has no entry ema; it holds a"),
        ({"a": torch.ones(1)}, InitMap(prefix="net."), "no name begins with net.; the first are a"),
        (
            {"a": torch.ones(1), "b": torch.ones(1)},
            InitMap(rename={"a": "c", "b": "c"}),
            "two of its tensors would be c; change workload.init_map",
        ),
        ({"a": torch.ones(1)}, InitMap(partial=True), "no tensor fits this model: there is no weight"),
    ],
)
def test_a_file_that_gives_no_weights_is_refused_in_one_line(
    tmp_path: Path, content: object, names: InitMap | None, fact: str, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(InvalidSpec, match=re.escape(f"workload.init_from: a.pt: {fact}")):
        load_initial_weights(tmp_path / "a.pt", "a.pt", nn.Linear(2, 3), names=names)
    assert capfd.readouterr().out == ""  # weights are read, and nothing in the file is run


def damaged(place: Path) -> None:
    torch.save({"a": torch.ones(2)}, place)
    place.write_bytes(place.read_bytes().replace(b"\x80\x02}q", b"\x80\x02\xff\xff", 1))


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "npz": lambda place: np.savez(place.with_suffix(".npz"), a=np.ones(2)),
    "torchscript": lambda place: torch.jit.script(nn.Linear(2, 3)).save(place),
    "damaged": damaged,
    "empty": lambda place: place.touch(),
}


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:.*TorchScript")
def test_a_file_that_is_no_torch_save_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    ODD_FILES[kind](tmp_path / "a.pt")
    (place,) = tmp_path.iterdir()
    with pytest.raises(
        InvalidSpec, match=r"^workload\.init_from: mine: a\.\w+: cannot be loaded: ."
    ) as found:
        load_initial_weights(place, "mine", nn.Linear(2, 3))
    assert "\n" not in str(found.value)


def test_a_training_begins_with_a_file(
    job: JobDir, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert job.train() == 0
    weights = torch.load(job.lineage() / "final/weights.pt")
    torch.save({f"gpt.{name}": each for name, each in weights.items()}, tmp_path / "his.pt")
    more = {"init_from": "his.pt", "init_map": {"prefix": "gpt."}, "steps": 1}
    assert job.train(lineage=2, workload=more, init_weights=str(tmp_path / "his.pt")) == 0
    assert "begins with the weights of his.pt" in capfd.readouterr().out


class Settings:
    """A configuration that a code base saves beside its weights."""

    def __init__(self) -> None:
        self.size = 3


def test_objects_of_another_code_base_beside_the_weights_are_not_read(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    content = {"model_state_dict": other.state_dict(), "config": Settings(), "tokenizer": [Settings()]}
    torch.save(content, tmp_path / "his.pt")
    load_initial_weights(tmp_path / "his.pt", "his.pt", model)
    assert torch.equal(model.weight, other.weight)


class Runs:
    """Something that would run a command if it were unpickled."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self._place}",)


def test_a_file_that_would_run_something_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    torch.save({"model": nn.Linear(2, 3).state_dict(), "x": Runs(tmp_path / "ran")}, tmp_path / "his.pt")
    with pytest.raises(InvalidSpec, match=r"his\.pt: cannot be loaded"):
        load_initial_weights(tmp_path / "his.pt", "his.pt", nn.Linear(2, 3))
    assert not (tmp_path / "ran").exists()


PARTS = {"blocks.*.w_q.": "layers.*.qkv.[1/2]", "blocks.*.w_k.": "layers.*.qkv.[2/2]", "ln.": "norm."}


def test_several_tensors_there_are_one_here_in_every_block(tmp_path: Path) -> None:
    his = {f"blocks.{n}.w_{name}.weight": torch.full((2, 2), 10.0 * n + k)
           for n in range(2) for k, name in enumerate("qk")}  # fmt: skip
    torch.save({**his, "ln.weight": torch.ones(3)}, tmp_path / "his.pt")
    model = nn.Module()
    model.layers = nn.ModuleList([nn.ModuleDict({"qkv": nn.Linear(2, 4, bias=False)}) for _ in range(2)])
    model.norm = nn.LayerNorm(3, bias=False)
    load_initial_weights(tmp_path / "his.pt", "his.pt", model, names=InitMap(rename=PARTS))
    found = model.state_dict()
    assert [found[f"layers.{n}.qkv.weight"][:, 0].tolist() for n in range(2)] == [
        [0, 0, 1, 1],
        [10, 10, 11, 11],
    ]
    del his["blocks.1.w_k.weight"]
    torch.save({**his, "ln.weight": torch.ones(3)}, tmp_path / "his.pt")
    with pytest.raises(InvalidSpec, match=r"layers\.1\.qkv\.weight lacks its part 2 of 2"):
        load_initial_weights(tmp_path / "his.pt", "his.pt", model, names=InitMap(rename=PARTS))


def test_an_adapter_needs_a_model_that_has_a_place_for_one(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidSpec, match="is an adapter of peft, and this model has no place for one"):
        load_initial_weights(tmp_path, "his", nn.Linear(2, 3))
