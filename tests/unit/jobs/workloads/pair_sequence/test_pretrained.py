"""A model from a directory of Hugging Face: read or refused, frozen but for its small changes."""

import json
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from jobs.checkpoint.exported import export
from jobs.checkpoint.initial import load_initial_weights
from jobs.contract import Profile
from jobs.contract.plans.base import Export
from jobs.contract.plans.pair_classifier import PairClassifier
from jobs.training.failures import InvalidSpec
from jobs.training.switches import Switches
from jobs.workloads.pair_sequence.pretrained import PretrainedReader, Prompt
from jobs.workloads.pair_sequence.workload import PairReader
from jobs.workloads.protocol import BuildContext
from tests.fakes.workloads.language_models import tiny_llama, tiny_tokenizer
from tests.fakes.workloads.small_sets import small_set
from tests.unit.jobs.workloads.bare_loop import evaluate, gradients, same, train

LORA = {"lora": {"rank": 8, "dropout": 0.0}}


@pytest.fixture(scope="module")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_set("pair_classifier", tmp_path_factory.mktemp("data") / "set")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.2}
    return tiny_llama(tmp_path_factory.mktemp("models") / "llama", **shape)


def make(
    molecules: Path, model: Path, plan: Mapping[str, object] | None = None, **switches: object
) -> tuple[PairReader, Switches]:
    known = {
        "data": str(molecules),
        "form": "sequence",
        "pretrained": str(model),
        "batch_size": 8,
        "length": 16,
        "eval_batches": 6,
        "swap_weight_end": 0.5,
    }
    profile = Switches(Profile.model_validate(switches))
    asked = PairClassifier.model_validate({**known, **(plan or {})})
    return PairReader(asked, BuildContext(3, profile)), profile


def model_of(workload: PairReader) -> nn.Module:
    assert isinstance(workload.model, PretrainedReader)
    return workload.model.model.eval()


@torch.no_grad()
def logits(model: nn.Module) -> torch.Tensor:
    found: torch.Tensor = model(torch.arange(8)[None]).logits
    return found


# --- What other code opens


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers
def test_peft_opens_an_exported_adapter_and_computes_the_same(
    molecules: Path, llama: Path, tmp_path: Path
) -> None:
    plan = {**LORA, "export": {"format": "peft"}}
    workload, _ = make(molecules, llama, plan)
    train(workload, 5, 1e-2)
    assert workload.plan.export is not None
    export(workload.plan.export, workload, workload.model.state_dict(), tmp_path)
    base = transformers.AutoModelForCausalLM.from_pretrained(str(llama)).eval()
    untrained = logits(base)
    his = peft.PeftModel.from_pretrained(base, str(tmp_path / "export")).eval()
    assert logits(his).allclose(logits(model_of(workload)), atol=1e-5)
    assert not logits(his).allclose(untrained, atol=1e-5)


def test_an_adapter_of_peft_is_where_a_training_begins(molecules: Path, llama: Path, tmp_path: Path) -> None:
    first, _ = make(molecules, llama, {**LORA, "export": {"format": "peft"}})
    train(first, 5, 1e-2)
    assert first.plan.export is not None
    export(first.plan.export, first, first.model.state_dict(), tmp_path)
    his = tmp_path / "export"
    second, _ = make(molecules, llama, LORA)
    assert load_initial_weights(his, "his", second.model) == "the weights of his"
    assert logits(model_of(second)).equal(logits(model_of(first)))
    other, _ = make(molecules, llama, {"lora": {"rank": 8, "alpha": 16}})
    with pytest.raises(InvalidSpec, match=r"lora_alpha is 32 there and workload\.lora\.alpha 16\.0 here"):
        load_initial_weights(his, "his", other.model)
    whole, _ = make(molecules, llama)
    with pytest.raises(InvalidSpec, match="this job trains none; set lora"):
        load_initial_weights(his, "his", whole.model)
    torch.save(load_file(his / "adapter_model.safetensors"), his / "adapter_model.bin")
    (his / "adapter_model.safetensors").unlink()
    load_initial_weights(his, "his", second.model)
    torch.save({}, his / "adapter_model.bin")
    (his / "adapter_model.safetensors").write_bytes(b"cut")
    with pytest.raises(InvalidSpec, match=r"adapter_model\.safetensors cannot be read: SafetensorError: "):
        load_initial_weights(his, "his", second.model)
    (his / "adapter_model.safetensors").unlink()
    (his / "adapter_model.bin").unlink()
    with pytest.raises(InvalidSpec, match=r"has none of adapter_model.safetensors and adapter_model.bin"):
        load_initial_weights(his, "his", second.model)
    (his / "adapter_config.json").write_text("{")
    with pytest.raises(InvalidSpec, match=r"adapter_config\.json cannot be read"):
        load_initial_weights(his, "his", second.model)


def test_what_is_trained_besides_lora_has_its_own_learning_rate(molecules: Path, llama: Path) -> None:
    plan = {**LORA, "trained": ["*lm_head*"], "learning_rate": 2e-4}
    one, _ = make(molecules, llama, plan)
    two, _ = make(molecules, llama, {**plan, "trained_learning_rate": 2e-5})
    assert [group.get("share") for group in one.parameter_groups()] == [None]
    groups = two.parameter_groups()
    assert [group["share"] for group in groups] == [1.0, pytest.approx(0.1)]
    assert all(".lora_" in name for name, _ in groups[0]["params"])
    assert [name.rpartition("lm_head")[1] for name, _ in groups[1]["params"]] == ["lm_head"]
    assert one.signatures["schedule"] != two.signatures["schedule"]


def test_transformers_opens_an_exported_model_and_computes_the_same(
    molecules: Path, llama: Path, tmp_path: Path
) -> None:
    workload, _ = make(molecules, llama, {"export": {"format": "huggingface"}})
    train(workload, 5, 1e-2)
    assert workload.plan.export is not None
    export(workload.plan.export, workload, workload.model.state_dict(), tmp_path)
    his = transformers.AutoModelForCausalLM.from_pretrained(str(tmp_path / "export")).eval()
    assert logits(his).allclose(logits(model_of(workload)), atol=1e-5)


def test_an_export_fits_what_is_trained(molecules: Path, llama: Path) -> None:
    with pytest.raises(ValueError, match="format: this model is written as"):
        make(molecules, llama, {"export": {"format": "peft"}})
    with pytest.raises(ValueError, match="an adapter of peft has no place for them"):
        make(molecules, llama, {**LORA, "trained": ["*lm_head*"], "export": {"format": "peft"}})


# --- What is trained


def test_lora_learns_and_the_model_stays_as_it_was(molecules: Path, llama: Path) -> None:
    workload, _ = make(molecules, llama, LORA)
    frozen = {name: one.clone() for name, one in workload.model.named_parameters() if not one.requires_grad}
    train(workload, 100, 1e-2)
    found = evaluate(workload)
    assert found.metrics["accuracy"] > found.baseline["accuracy"] + 0.1
    assert found.metrics["eval_loss"] < found.baseline["eval_loss"]
    now = dict(workload.model.named_parameters())
    assert frozen
    assert all(now[name].equal(before) for name, before in frozen.items())


def test_the_state_is_that_of_what_is_trained(molecules: Path, llama: Path) -> None:
    workload, _ = make(molecules, llama, {**LORA, "trained": ["*lm_head*"]})
    state = workload.model.state_dict()
    assert {name.rpartition(".lora_")[1] for name in state} == {".lora_", ""}
    assert [name for name in state if "lora_" not in name] == ["model.base_model.model.lm_head.weight"]
    train(workload, 2, 1e-2)
    other, _ = make(molecules, llama, {**LORA, "trained": ["*lm_head*"]})
    other.model.load_state_dict(workload.model.state_dict())
    batch = workload.source.batch(5)
    assert other.loss_sum(batch).equal(workload.loss_sum(batch))
    with pytest.raises(RuntimeError, match="are not those that this model trains"):
        other.model.load_state_dict({})


def test_without_lora_all_of_it_is_trained(molecules: Path, llama: Path) -> None:
    workload, _ = make(molecules, llama)
    trained = [name for group in workload.parameter_groups() for name, _ in group["params"]]
    assert len(trained) == len(list(workload.model.parameters())) == len(workload.model.state_dict())


def test_two_builds_begin_alike_and_other_models_have_other_signatures(
    molecules: Path, llama: Path, tmp_path: Path
) -> None:
    one, _ = make(molecules, llama, LORA)
    two, _ = make(molecules, llama, LORA)
    batch = one.source.batch(0)
    assert same(two.source.batch(0), batch)
    assert gradients(one, batch)[0] == gradients(two, batch)[0]
    assert one.signatures == two.signatures
    other, _ = make(molecules, tiny_llama(tmp_path / "other"), LORA)
    asked, _ = make(molecules, llama, {**LORA, "prompt": "{first} or {second}?"})
    assert other.signatures["model"] != one.signatures["model"] != asked.signatures["model"]


# --- How it is shown pairs


def test_a_pair_is_written_into_the_prompt(molecules: Path, llama: Path) -> None:
    workload, _ = make(molecules, llama, {**LORA, "prompt": "Is {first} above {second}?"})
    codec = workload.source.train.codec
    assert isinstance(codec, Prompt)
    tokens = [token for token in codec.join(codec.encode("CCO"), codec.encode("CN")) if token >= 0]
    assert codec.tokenizer.decode(tokens) == "<s>Is CCO above CN?"
    assert len(codec.join(codec.encode("C"), codec.encode("C"))) == codec.length
    elsewhere = pickle.loads(pickle.dumps(workload.source))  # noqa: S301 - of this process
    assert same(elsewhere.batch(3), workload.source.batch(3))


def test_padding_changes_nothing(molecules: Path, llama: Path) -> None:
    workload, _ = make(molecules, llama, LORA)
    tokens = workload.source.batch(0)["tokens"][:1, :1]
    longer = torch.nn.functional.pad(tokens, (9, 0), value=-1)
    with torch.inference_mode():
        torch.testing.assert_close(workload.model(longer), workload.model(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "switches",
    [{"last_position_only": False}, {"conversion": "each_use"}, {"activation_checkpointing": True}],
    ids=str,
)
def test_a_switch_changes_neither_loss_nor_gradients(
    molecules: Path, llama: Path, switches: dict[str, object]
) -> None:
    plain, _ = make(molecules, llama, LORA)
    other, said = make(molecules, llama, LORA, **switches)
    batch = plain.source.batch(4)
    assert same(batch, other.source.batch(4))
    loss, grads = gradients(plain, batch)
    loss_too, grads_too = gradients(other, batch)
    assert loss_too == pytest.approx(loss, rel=1e-5)
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(grads, grads_too, strict=True))
    assert said.report()["last_position_only"].verified


def test_a_model_that_computes_all_positions_says_so(
    molecules: Path, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = transformers.LlamaForCausalLM.forward

    def older(self: torch.nn.Module, input_ids: object, attention_mask: object, use_cache: object) -> object:
        return forward(self, input_ids, attention_mask, use_cache=use_cache)

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", older)
    workload, said = make(molecules, llama)
    assert isinstance(workload.model, PretrainedReader)
    assert not workload.model.last_only
    found = said.report()["last_position_only"]
    assert (found.applied, found.note) == ("false", "LlamaForCausalLM computes all positions")
    assert gradients(workload, workload.source.batch(0))[0] > 0


# --- What is refused


def _without(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _with_config(**changes: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        file = directory / "config.json"
        known = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({key: value for key, value in known.items() if value is not None}))

    return change


def _cut_off(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def _without_a_layer(directory: Path) -> None:
    file = directory / "model.safetensors"
    state = load_file(file)
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, file, {"format": "pt"})


def _pickled(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def _broken_config(directory: Path) -> None:
    (directory / "config.json").write_text("{")


def _broken_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{}")


def _larger_tokenizer(directory: Path) -> None:
    tiny_tokenizer(["ĠFirst", "ĠSecond", "ĠSimilar", "more"]).save_pretrained(directory)


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (_without("config.json"), r"config\.json: No such file or directory; it is part of every saved model"),
    (_broken_config, r"config\.json: Expecting property name.*; copy the file again"),
    (
        _with_config(model_type=None),
        r"config\.json: has no model_type; copy the config of",
    ),
    (_with_config(model_type="unheard-of"), r"no causal language model can be read|no tokenizer can be read"),
    (
        _pickled,
        r"has no weights as \*\.safetensors \(it holds .*pytorch_model\.bin.*files may run code",
    ),
    (_cut_off, r"no causal language model can be read: SafetensorError: .*; copy the directory again"),
    (_without_a_layer, r"the weights of LlamaForCausalLM lack model\.layers\.1\.mlp\.up_proj\.weight; take"),
    (
        _with_config(hidden_size=64),
        r"no causal language model can be read: RuntimeError: .*; copy the dir",
    ),
    (
        _with_config(max_position_embeddings=40),
        r"reads 40 tokens, and a pair has up to 51 \(26 of them texts",
    ),
    (_broken_tokenizer, r"no tokenizer can be read: .*; save it beside the model"),
    (_larger_tokenizer, r"the tokenizer has 103 tokens, and the model 102; save both of the same model"),
]


@pytest.mark.parametrize(("spoil", "complaint"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_model_is_refused_at_its_place(
    molecules: Path, tmp_path: Path, spoil: Callable[[Path], None], complaint: str
) -> None:
    model = tiny_llama(tmp_path / "model")
    spoil(model)
    with pytest.raises(InvalidSpec, match=complaint):
        make(molecules, model, LORA)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (
            {"lora": {"targets": ["q_proj", "query"]}},
            r"lora\.targets: query: not in this model, which has d",
        ),
        ({**LORA, "trained": ["*projector*"]}, r"trained: no parameter is called '\*projector\*'; they"),
        (
            {"answers": [" yes", " yesterday", " no"]},
            r"answers: ' yes', ' yesterday', ' no' begin with the",
        ),
        ({"answers": ["", " Second", " Similar"]}, r"answers: '' has no token in this tokenizer"),
        ({**LORA, "quantize": "nf4"}, r"quantize: nf4 needs a CUDA device, and this attempt has none; leave"),
    ],
)
def test_a_field_that_does_not_fit_the_model_is_refused(
    molecules: Path, llama: Path, fields: dict[str, object], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidSpec, match=complaint):
        make(molecules, llama, fields)


def test_weights_that_a_job_may_not_read_are_told(
    molecules: Path, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``save_pretrained`` writes weights that only their owner reads, and a job of root is another user."""
    whole, _ = make(molecules, llama, LORA)
    export(Export(format="peft"), whole, whole.model.state_dict(), tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).suffix != ".safetensors")
    with pytest.raises(
        InvalidSpec, match=r"llama/model\.safetensors: this job, as uid \d+, may not read it; ch"
    ):
        make(molecules, llama, LORA)
    with pytest.raises(
        InvalidSpec, match=r"adapter_model\.safetensors: this job, as uid \d+, may not read it"
    ):
        load_initial_weights(tmp_path / "export", "his", whole.model)


def test_a_directory_that_is_none_is_refused(molecules: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"pretrained: .*nothing: is not a directory; give one that save_"):
        make(molecules, tmp_path / "nothing", LORA)


def test_missing_packages_are_told_with_the_line_that_adds_them(
    molecules: Path, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = "jobs.workloads.pair_sequence.pretrained.find_spec"
    monkeypatch.setattr(found, lambda name: None if name == "peft" else name)
    with pytest.raises(InvalidSpec, match=r"needs the packages peft; add them to the job: image: \{require"):
        make(molecules, llama, LORA)
