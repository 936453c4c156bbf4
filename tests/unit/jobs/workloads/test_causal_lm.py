"""The ways of attending and of keeping activations are one model; text is cut, scored and written."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from jobs.contract.plans.causal_lm import CausalLm
from jobs.training.failures import InvalidSpec
from jobs.workloads.causal_lm import CausalLanguageModel, Masks, Transformer, attend
from runner.adapters.datasets.tokenizer import train_tokenizer
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import gradient, make
from tests.unit.jobs.workloads.bare_loop import assert_declared

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


@pytest.mark.parametrize(("attention", "tables"), [("fused", 0), ("cached_mask", 1), ("rebuilt_mask", 1)])
def test_fused_attention_keeps_no_table_of_scores_for_the_backward_pass(attention: str, tables: int) -> None:
    time = 256
    query, key, value = (torch.ones(1, 2, time, 8, requires_grad=True) for _ in range(3))
    kept: list[tuple[int, ...]] = []

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(seen, lambda tensor: tensor):
        attend(query, key, value, Masks(attention).of(time, torch.device("cpu")))
    assert kept
    assert any(shape == (1, 2, time, time) for shape in kept) == bool(tables)
    assert any(math.prod(shape) >= 2 * time * time for shape in kept) == bool(tables)


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


# --- Masks


def model_of(job: JobDir, attention: str, **plan: object) -> tuple[Transformer, CausalLanguageModel]:
    workload = make(job, workload={"layers": 3, **plan}, profile={"attention": attention}).workload
    assert isinstance(workload, CausalLanguageModel)
    return workload.model, workload


def test_all_blocks_share_one_mask(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = model_of(job, "rebuilt_mask")
    built: list[int] = []
    triu = torch.Tensor.triu

    def counted(self: torch.Tensor, diagonal: int) -> torch.Tensor:
        built.append(diagonal)
        return triu(self, diagonal)

    monkeypatch.setattr(torch.Tensor, "triu", counted)
    model(torch.zeros(1, 8, dtype=torch.int64))
    assert len(built) == 1


def test_masks_are_kept_by_length_and_given_up_when_the_device_changes(job: JobDir) -> None:
    model, _ = model_of(job, "cached_mask")
    for time in (8, 4, 8):
        model(torch.zeros(1, time, dtype=torch.int64))
    assert {time for time, _ in model.masks.kept_TT} == {8, 4}
    assert model.masks.kept_bytes == 8 * 8 + 4 * 4
    model.to("meta")
    assert not model.masks.kept_TT


ONE = "one mask of 64 entries and 64 bytes for 3 block(s)"


@pytest.mark.parametrize(
    ("attention", "note"),
    [
        ("cached_mask", "one mask of 64 entries and 64 bytes for 3 block(s), 1 kept on cpu (64 bytes)"),
        (
            "rebuilt_mask",
            "one mask of 64 entries and 64 bytes for 3 block(s), made in every forward pass on cpu",
        ),
        ("fused", "no mask, scaled_dot_product_flash_attention_for_cpu on cpu"),
    ],
)
def test_the_mask_is_told_with_its_entries_and_bytes(job: JobDir, attention: str, note: str) -> None:
    training = make(job, workload={"layers": 3}, profile={"attention": attention})
    training.rehearse()
    told = training.effective().switches["attention"]
    assert (told.verified, told.note) == (True, note)


# --- Windows


def windows_of(job: JobDir, **plan: object) -> CausalLanguageModel:
    workload = make(job, workload=plan).workload
    assert isinstance(workload, CausalLanguageModel)
    return workload


def test_separate_windows_come_once_in_an_epoch_and_in_another_order_in_the_next(job: JobDir) -> None:
    workload = windows_of(job, windows="separate", context=64, batch_size=8)
    source, steps = workload.source, workload.steps_per_epoch
    count = source.window_count
    assert count is not None
    assert workload.train_items == count * 64
    first = [tuple(row) for step in range(steps) for row in source.batch(step)["tokens"].tolist()]
    second = [tuple(row) for step in range(steps, 2 * steps) for row in source.batch(step)["tokens"].tolist()]
    text = source.corpus.train_N
    every = {tuple(text[start : start + 65].tolist()) for start in range(0, count * 64, 64)}
    assert len(first) == len(second) == steps * 8
    assert set(first) <= every
    assert len(set(first)) >= len(every) - 8  # the last windows do not fill a batch
    assert first != second


def test_overlapping_windows_begin_a_stride_apart(job: JobDir) -> None:
    workload = windows_of(job, windows="overlapping", context=64, stride=16, batch_size=8)
    text, rows = workload.source.corpus.train_N, workload.source.batch(3)["tokens"]
    starts = {tuple(text[start : start + 65].tolist()) for start in range(0, len(text) - 64, 16)}
    assert all(tuple(row) in starts for row in rows.tolist())
    assert workload.source.window_count == (len(text) - 65) // 16 + 1
    assert windows_of(job, windows="overlapping", context=64).source.stride == 32


def test_a_batch_that_is_larger_than_an_epoch_repeats_windows(job: JobDir, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("ab" * 30)
    workload = windows_of(job, data=str(tmp_path / "short.txt"), windows="separate", batch_size=16)
    assert workload.source.window_count == 6
    assert workload.source.batch(0)["tokens"].shape == (16, 9)
    assert workload.steps_per_epoch == 1


def test_separate_windows_are_evaluated_in_the_order_of_the_text(job: JobDir) -> None:
    source = windows_of(job, windows="separate", context=16, batch_size=2).source
    held_out = source.corpus.held_out_N
    assert source.held_out(1)["tokens"][0].equal(held_out[32:49])


def test_ways_of_cutting_are_part_of_the_schedule(job: JobDir) -> None:
    plain, cut = windows_of(job).signatures, windows_of(job, windows="separate").signatures
    assert [name for name in plain if plain[name] != cut[name]] == ["schedule"]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"stride": 4}, "is for windows: overlapping"),
        ({"windows": "overlapping", "stride": 65}, "65 is more than context, 64: the tokens between"),
    ],
)
def test_a_stride_without_an_effect_is_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        CausalLm.model_validate({"data": "x", **fields})


# --- Tokens, perplexity, samples


@pytest.fixture
def bpe(job: JobDir, tmp_path: Path) -> Path:
    train_tokenizer(sorted(job.corpus.glob("*.py")), tmp_path / "tokenizer.json", 300)
    return tmp_path / "tokenizer.json"


def test_perplexity_and_bits_are_the_loss_in_other_units(job: JobDir, bpe: Path) -> None:
    found = windows_of(job).judge({"loss": 20.0, "count": 10.0})
    assert found.metrics["perplexity"] == pytest.approx(math.e**2)
    assert found.baseline["perplexity"] == pytest.approx(math.exp(found.baseline["eval_loss"]))
    assert "bits_per_byte" not in found.metrics
    workload = windows_of(job, tokenizer=str(bpe))
    corpus = workload.source.corpus
    found = workload.judge({"loss": 20.0, "count": 10.0})
    assert_declared(workload, found)
    bytes_per_token = len(corpus.tokens.decode(corpus.held_out_N.tolist()).encode()) / len(corpus.held_out_N)
    assert bytes_per_token > 1
    assert found.metrics["bits_per_byte"] == pytest.approx(2 / math.log(2) / bytes_per_token)
    assert workload.judge({"loss": 8000.0, "count": 10.0}).metrics["perplexity"] == math.inf


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "file"])
def test_every_tokenizer_trains_and_beats_frequencies(job: JobDir, bpe: Path, tokenizer: str) -> None:
    plan = {
        "tokenizer": str(bpe) if tokenizer == "file" else tokenizer,
        "context": 32,
        "width": 32,
        "batch_size": 16,
        "steps": 80,
        "learning_rate": 0.01,
        "eval_every": 80,
        "eval_batches": 2,
    }
    assert job.train(workload=plan) == 0
    metrics = job.result().metrics
    assert metrics["eval_loss"] < metrics["baseline_eval_loss"]
    assert metrics["perplexity"] < metrics["baseline_perplexity"]


def test_samples_are_written_into_the_log_and_change_no_bit(
    job: JobDir, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = JobDir(tmp_path / "other", job.corpus)
    known: dict[str, Any] = {"eval_every": 4}
    assert job.train(workload=known) == 0
    capfd.readouterr()
    assert other.train(workload={**known, "samples": 2, "sample_tokens": 5, "sample_prompt": "def "}) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("sample ")]
    assert [line[:12] for line in lines] == ['sample 1: "d', 'sample 2: "d'] * 2
    assert all(json.loads(line.partition(": ")[2]).startswith("def ") for line in lines)
    assert other.run_weights() == job.run_weights()


def test_a_sample_without_a_prompt_begins_a_line(job: JobDir) -> None:
    workload = windows_of(job, samples=1, sample_tokens=3)
    [line] = workload.judge({"loss": 1.0, "count": 1.0}).lines
    assert len(json.loads(line.partition(": ")[2]).encode(errors="replace")) <= 9
    assert workload.judge({"loss": 1.0, "count": 1.0}).lines == (line,)


def test_fixed_positions_are_sines_and_cosines_that_are_not_trained(job: JobDir) -> None:
    training = make(job, workload={"positions": "sinusoidal"})
    table = training.workload.model.position.weight
    assert "position.weight" not in dict(training.workload.model.named_parameters())
    assert "position.weight" in training.workload.model.state_dict()
    for position in range(8):
        for pair in range(4):
            angle = position / 10000 ** (2 * pair / 8)
            found = table[position, 2 * pair : 2 * pair + 2].tolist()
            assert found == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)
    before = table.clone()
    training.update(0)
    assert torch.equal(table, before)


def test_a_larger_vocabulary_has_more_rows_and_no_sample_of_them(job: JobDir) -> None:
    workload = windows_of(job, vocabulary=50257, samples=1, sample_tokens=8)
    assert workload.model.token.weight.shape == (50257, 8)
    with torch.no_grad():
        workload.model.token.weight[256:] *= 1000
    [line] = list(workload._samples())
    assert line.startswith("sample 1: ")
    with pytest.raises(InvalidSpec, match=r"workload.vocabulary: 255 is less than the 256 tokens of bytes"):
        windows_of(job, vocabulary=255)
