"""A causal language model from a local directory, that answers which of two texts has the higher value.

The directory is one that ``save_pretrained`` of Hugging Face writes: ``config.json``, the weights as
safetensors, and the tokenizer.  Nothing is downloaded, and no code of the directory is run.  With LoRA
(``peft``) the model is frozen, and only its small changes are trained, saved and published.

Shape legend: R rows, O orders, S sequences, T tokens, Q computed positions, V vocabulary, K answers.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

import hashlib
import inspect
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from jobs.checkpoint.directory import load
from jobs.checkpoint.initial import ADAPTER
from jobs.contract import CheckpointInvalid
from jobs.contract.plans.pair_classifier import PROMPT, WORDS, PairClassifier
from jobs.training.failures import InvalidSpec
from jobs.training.switches import Switches

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PAD: Final = -1
"""Stands before a short sequence; no tokenizer has it."""

CONFIG: Final = "config.json"

_ADAPTERS: Final = ("adapter_model.safetensors", "adapter_model.bin")
"""Files with the weights of an adapter of peft."""

_INSTALL: Final = "; add them to the job: image: {requirements: ['transformers>=5', peft]}"

_IDENTITY: Final = (CONFIG, "*.safetensors", "tokenizer*.json", "tokenizer.model", "vocab*", "merges.txt")
"""Files on which the results depend."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Writes a pair in the tokens of a pretrained model's tokenizer."""

    tokenizer: "PreTrainedTokenizerBase"
    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    longest: int
    """Tokens of the longest text."""

    @property
    def length(self) -> int:
        return len(self.before) + len(self.between) + len(self.after) + 2 * self.longest

    @property
    def dtype(self) -> torch.dtype:
        return torch.int32

    def encode(self, text: str) -> list[int]:
        return _tokens(self.tokenizer, text)

    def join(self, first: Sequence[int], second: Sequence[int]) -> list[int]:
        tokens = [*self.before, *first, *self.between, *second, *self.after]
        return [PAD] * (self.length - len(tokens)) + tokens

    def hide(self, tokens_ROT: Tensor, share: float, generator: torch.Generator) -> Tensor:
        """Return the tokens as they are: a pretrained model has no token for what is hidden."""
        del share, generator
        return tokens_ROT


class PretrainedReader(nn.Module):
    """Returns logits (R, 1, O, K) of the answers to pairs, from tokens (R, O, T).

    Its state is that of the parameters that are trained: frozen ones are in the directory of the model.
    """

    def __init__(self, model: nn.Module, answers: Sequence[int], *, last_only: bool) -> None:
        super().__init__()
        self.model = model
        self.answers = list(answers)
        known = inspect.signature(_base(model).forward).parameters
        self.takes_positions = "position_ids" in known
        self.takes_last = "logits_to_keep" in known
        self.last_only = last_only and self.takes_last

    def forward(self, tokens_ROT: Tensor) -> Tensor:
        words_SQV = self.words(tokens_ROT.flatten(0, 1))
        return words_SQV[:, -1, self.answers].unflatten(0, tokens_ROT.shape[:2])[:, None]

    def words(self, tokens_ST: Tensor) -> Tensor:
        """Return logits over the vocabulary, of the last position or of all."""
        tokens_ST = tokens_ST.long()
        seen_ST = tokens_ST != PAD
        more: dict[str, Any] = {"logits_to_keep": 1} if self.last_only else {}
        if self.takes_positions:
            more["position_ids"] = (seen_ST.cumsum(dim=1) - 1).clamp(min=0)
        known = {"input_ids": tokens_ST.clamp(min=0), "attention_mask": seen_ST.long(), "use_cache": False}
        return self.model(**known, **more).logits

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401  (as in torch)
        """Return the trained parameters alone."""
        whole = super().state_dict(*args, **options)
        prefix = options.get("prefix", "")
        trained = {prefix + name for name, one in self.named_parameters() if one.requires_grad}
        return {name: value for name, value in whole.items() if name in trained}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **options: Any) -> object:  # noqa: ANN401  (as in torch)
        """Load the trained parameters.

        Raises:
            RuntimeError: they are not those of this model.
        """
        if set(state_dict) != set(self.state_dict()):
            raise RuntimeError("the saved parameters are not those that this model trains")
        return super().load_state_dict(dict(state_dict), *args, **{**options, "strict": False})

    def adapter_weights(self, directory: Path) -> dict[str, Tensor]:
        """Return the weights of an adapter of peft by the names of this model.

        Raises:
            CheckpointInvalid: it cannot be read, or its changes are scaled or placed in another way.
        """
        ours = getattr(self.model, "peft_config", {}).get("default")
        if ours is None:
            raise CheckpointInvalid("is an adapter of peft, and this job trains none; set lora")
        try:
            his = json.loads((directory / ADAPTER).read_bytes())
            file = next(path for path in map(directory.joinpath, _ADAPTERS) if path.is_file())
        except StopIteration:
            raise CheckpointInvalid(f"has none of {' and '.join(_ADAPTERS)} beside {ADAPTER}") from None
        except (OSError, ValueError) as error:
            raise CheckpointInvalid(f"{ADAPTER} cannot be read: {error}") from error
        for field, name in (("r", "rank"), ("lora_alpha", "alpha")):
            if his.get(field) != getattr(ours, field):
                fact = (
                    f"{field} is {his.get(field)} there and workload.lora.{name} {getattr(ours, field)} here"
                )
                raise CheckpointInvalid(f"{fact}; make them equal")
        found = _adapter(file)
        return {
            "model." + re.sub(r"\.(lora_[A-Za-z_]+)\.", r".\1.default.", name): tensor
            for name, tensor in found.items()
        }

    def save_pretrained(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the adapter or the model in the layout of Hugging Face."""
        own = {name.removeprefix("model."): tensor.detach().cpu() for name, tensor in weights.items()}
        model: Any = self.model
        with _quiet():
            model.save_pretrained(str(directory), state_dict=own)


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model, its way of writing pairs, and the digest of its files."""

    model: PretrainedReader
    codec: Prompt
    digest: str


def load_pretrained(plan: PairClassifier, texts: Sequence[str], switches: Switches) -> Pretrained:
    """Return the model of a plan, changed as it says, and its prompt for some texts.

    Raises:
        InvalidSpec: a package or a file is missing or not valid, or a field does not fit the model.
    """
    directory = Path(plan.pretrained or "")
    _look_for_packages(plan)
    _look_at(directory)
    with _quiet():
        tokenizer = _load_tokenizer(directory)
        codec = _prompt(plan, tokenizer, texts)
        model = _load_model(directory, plan)
        _compare(plan, model, tokenizer, codec)
        changed = _adapt(plan, model)
    answers = [_first_token(tokenizer, word) for word in plan.answers or WORDS]
    if len(set(answers)) < len(answers):
        words = ", ".join(map(repr, plan.answers or WORDS))
        raise InvalidSpec(
            f"workload.answers: {words} begin with the tokens {', '.join(map(str, answers))}, which are not"
            " three; give other words"
        )
    if switches.profile.activation_checkpointing:
        _recompute(model)
    reader = PretrainedReader(changed, answers, last_only=switches.profile.last_position_only)
    if switches.profile.last_position_only and not reader.takes_last:
        why = f"{type(_base(changed)).__name__} computes all positions"
        switches.fell_back("last_position_only", value=False, why=why)
    switches.applied("activation_checkpointing")
    return Pretrained(reader, codec, _digest(directory))


def _recompute(model: "PreTrainedModel") -> None:
    """Compute activations again in the backward pass; transformers 5 has two names for it, one in turn."""
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    enable = next(getattr(model, name) for name in names if hasattr(model, name))
    enable({"use_reentrant": False})


def _base(model: nn.Module) -> nn.Module:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from the network, and its progress bars and advice from the log."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# --- What is looked at first, so that a message names the mistake


def _look_for_packages(plan: PairClassifier) -> None:
    wanted = ["transformers", *(["peft"] if plan.lora else []), *(["bitsandbytes"] if plan.quantize else [])]
    if plan.quantize and not torch.cuda.is_available():
        raise InvalidSpec(
            f"workload.quantize: {plan.quantize} needs a CUDA device, and this attempt has none; leave the"
            " line out, or ask for one (resources: {gpus: 1})"
        )
    missing = [name for name in wanted if find_spec(name) is None]
    if missing:
        raise InvalidSpec(f"workload.pretrained: needs the packages {', '.join(missing)}{_INSTALL}")


def _adapter(file: Path) -> Mapping[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if denied := _denied([file]):
        raise CheckpointInvalid(denied)
    try:
        found: Mapping[str, Tensor] = (
            load_file(file) if file.suffix == ".safetensors" else load(file.parent, file.name)
        )
    except (OSError, SafetensorError) as error:
        raise CheckpointInvalid(f"{file.name} cannot be read: {_one_line(error)}") from error
    return found


def _denied(files: Iterable[Path]) -> str:
    """Return that a file may not be read, for which safetensors says that it is not there."""
    found = sorted(path.name for path in files if not os.access(path, os.R_OK))
    return f"{found[0]}: this job, as uid {os.geteuid()}, may not read it; chmod a+r" if found else ""


def _look_at(directory: Path) -> None:
    where = f"workload.pretrained: {directory}"
    if not directory.is_dir():
        raise InvalidSpec(
            f"{where}: is not a directory; give one that save_pretrained of transformers has written"
        )
    try:
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSpec(f"{where}/{CONFIG}: {error.strerror}; it is part of every saved model") from error
    except ValueError as error:
        raise InvalidSpec(f"{where}/{CONFIG}: {error}; copy the file again") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise InvalidSpec(f"{where}/{CONFIG}: has no model_type; copy the config of transformers again")
    if not list(directory.glob("*.safetensors")):
        held = ", ".join(sorted(one.name for one in directory.iterdir())[:5])
        raise InvalidSpec(
            f"{where}: has no weights as *.safetensors (it holds {held}); save it with"
            " save_pretrained(safe_serialization=True), other files may run code"
        )
    if denied := _denied(_files(directory)):
        raise InvalidSpec(f"{where}/{denied}")


def _load_tokenizer(directory: Path) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # tokenizers raises Exception itself
        raise InvalidSpec(
            f"workload.pretrained: {directory}: no tokenizer can be read: {_one_line(error)}; save it beside"
            " the model (tokenizer.save_pretrained)"
        ) from error


def _load_model(directory: Path, plan: PairClassifier) -> "PreTrainedModel":
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    where = f"workload.pretrained: {directory}"
    options: dict[str, Any] = {"dtype": torch.float32}
    if plan.quantize:
        options = {"quantization_config": _four_bits(), "device_map": {"": 0}, "dtype": torch.bfloat16}
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, use_safetensors=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, SafetensorError) as error:
        raise InvalidSpec(
            f"{where}: no causal language model can be read: {_one_line(error)}; copy the directory again"
        ) from error
    if missing := sorted(found["missing_keys"]):
        raise InvalidSpec(
            f"{where}: the weights of {type(model).__name__} lack {', '.join(missing[:3])}"
            f"{' and others' if len(missing) > 3 else ''}; take the directory of a causal language model"
        )
    return model


def _four_bits() -> object:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


# --- The prompt


def _tokens(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _first_token(tokenizer: "PreTrainedTokenizerBase", word: str) -> int:
    tokens = _tokens(tokenizer, word)
    if not tokens:
        raise InvalidSpec(f"workload.answers: {word!r} has no token in this tokenizer; give another word")
    return tokens[0]


def _prompt(plan: PairClassifier, tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> Prompt:
    start, _, rest = (plan.prompt or PROMPT).partition("{first}")
    between, _, end = rest.partition("{second}")
    opening = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    parts = [tuple(_tokens(tokenizer, part)) if part else () for part in (start, between, end)]
    longest = 0
    for text in texts:
        tokens = _tokens(tokenizer, text)
        if not tokens:
            raise InvalidSpec(f"data: {text!r} has no token in the tokenizer of {plan.pretrained}")
        longest = max(longest, len(tokens))
    return Prompt(tokenizer, (*opening, *parts[0]), parts[1], parts[2], longest)


def _compare(
    plan: PairClassifier, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", codec: Prompt
) -> None:
    """Refuse a model that cannot read what it will be shown."""
    most = getattr(model.config, "max_position_embeddings", None)
    if most is not None and codec.length > most:
        raise InvalidSpec(
            f"workload.pretrained: {plan.pretrained}: reads {most} tokens, and a pair has up to"
            f" {codec.length} ({2 * codec.longest} of them texts); shorten the prompt or leave out long texts"
        )
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise InvalidSpec(
            f"workload.pretrained: {plan.pretrained}: the tokenizer has {len(tokenizer)} tokens, and the"
            f" model {rows}; save both of the same model"
        )


# --- What is trained


def _adapt(plan: PairClassifier, model: "PreTrainedModel") -> nn.Module:
    """Return the model with its changes, everything but them and ``trained`` frozen."""
    if plan.lora is None:
        return model
    from peft import LoraConfig, get_peft_model

    lora = plan.lora
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets) or "all-linear",
        bias="none",
        task_type="CAUSAL_LM",
    )
    linear = {name.rpartition(".")[2] for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    unknown = [name for name in lora.targets if not any(_ends(one, name) for one, _ in model.named_modules())]
    if unknown:
        raise InvalidSpec(
            f"workload.lora.targets: {', '.join(unknown)}: not in this model, which has"
            f" {', '.join(sorted(linear)[:12])}"
        )
    changed: nn.Module = get_peft_model(model, config)
    for pattern in plan.trained:
        _thaw(changed, pattern)
    return changed


def _ends(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _thaw(model: nn.Module, pattern: str) -> None:
    own = {name: one for name, one in model.named_parameters() if ".lora_" not in name}
    found = [one for name, one in own.items() if fnmatchcase(name, pattern)]
    if not found:
        names = ", ".join(list(own)[:3])
        raise InvalidSpec(f"workload.trained: no parameter is called {pattern!r}; they are called as {names}")
    for one in found:
        if not one.is_floating_point():
            raise InvalidSpec(f"workload.trained: {pattern!r} is of 4 bits, which cannot be trained")
        one.requires_grad_(requires_grad=True)


def _digest(directory: Path) -> str:
    """Return the sha256 of the names and contents of all files on which the results depend."""
    whole = hashlib.sha256()
    for path in sorted(_files(directory)):
        with path.open("rb") as stream:
            whole.update(f"{path.name}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}\0".encode())
    return whole.hexdigest()


def _files(directory: Path) -> set[Path]:
    return {path for pattern in _IDENTITY for path in directory.glob(pattern) if path.is_file()}


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
