"""The files of the five source projects in their formats, with made-up content, and their own readers.

Layouts and names are those of the projects' code; nothing of their data is here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from tests.fakes.workloads.annotations import COUNT, annotation, iso, write
from tests.fakes.workloads.motions import sequences
from tests.fakes.workloads.panels import panel_rows, write_panel


class Configuration:
    """An object of an owner's own class, which he saves beside his weights."""

    def __init__(self, **values: object) -> None:
        self.values = values


@dataclass(frozen=True)
class Owner:
    """A job as its owner would write it, and what opens its result."""

    workload: Mapping[str, Any]
    init: str | None
    """His checkpoint."""
    reads: Callable[[Path], dict[str, Tensor]]
    """The tensors that his own reader finds in the export, by our names."""


# --- MobilePoser: lists of tensors, a checkpoint of Lightning


class HisPoser(nn.Module):
    """His ``RNN`` as the attribute ``pose`` of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.pose = nn.ModuleDict(
            {
                "rnn": nn.LSTM(8, 8, 2, bidirectional=True),
                "linear1": nn.Linear(72 + 60, 8),
                "linear2": nn.Linear(16, 16 * 6),
            }
        )


POSER: Final = {"linear1.": "poser.embed.", "rnn.": "poser.lstm.", "linear2.": "poser.out."}


def mobileposer(directory: Path) -> Owner:
    """Return the job of his poser, over archives with contacts of four columns and a few NaN."""
    for number, name in enumerate(("ACCAD", "BMLmovi", "CMU", "totalcapture25")):
        contents = sequences(3 * number, 3, frames=40)
        contents["contact"] = [each.repeat_interleave(2, 1) for each in contents["contact"]]
        contents["ori"] = [each.clone() for each in contents["ori"]]
        contents["ori"][0][3, 1] = torch.nan
        torch.save(contents, directory / f"{name}.pt")
    named = dict(HisPoser().state_dict())
    more = {"hyper_parameters": Configuration(finetune=False), "pytorch-lightning_version": "2.1"}
    torch.save({"state_dict": named, "epoch": 2, **more}, directory / "poser.ckpt")
    names = {"entry": "state_dict", "prefix": "pose.", "rename": POSER, "partial": True}
    workload = {
        "kind": "imu_stream", "data": str(directory), "module": "poser", "pose_joints": 16,
        "files": ["*.pt"], "clean": {"nan": None}, "window": 20, "hidden": 8, "layers": 2,
        "bidirectional": True, "batch_size": 6, "shards": 2, "held_out": 0.34, "init_map": names,
        "export": {"format": "state_dict", "file": "poser.ckpt", **names},
    }  # fmt: skip

    def reads(export: Path) -> dict[str, Tensor]:
        model = HisPoser()
        model.load_state_dict(torch.load(export / "poser.ckpt")["state_dict"])
        return {_renamed(name.removeprefix("pose."), POSER): one for name, one in model.state_dict().items()}

    return Owner(workload, "poser.ckpt", reads)


# --- gogooku3: a panel with gaps and infinite ratios, a best checkpoint


ATFT: Final = {"temporal.lstm.": "encoder.lstm.", "gat_layers.*.": "graph.*.", "fusion.": "join."}


def gogooku3(directory: Path) -> Owner:
    """Return the job of his panel, whose dates are text without dashes."""
    rows = panel_rows()
    rows["Date"] = [f"{day:%Y%m%d}" for day in rows.pop("date")]
    rows["Code"] = rows.pop("code")
    rows["feat_noise"][3], rows["feat_noise"][4] = math.inf, math.nan
    write_panel(directory / "atft_data" / "ml_dataset_full.parquet", rows)
    his = {f"temporal.lstm.{name}": one for name, one in nn.LSTM(8, 8).state_dict().items()}
    his["temporal.static.weight"] = torch.ones(3)
    content = {
        "model_state_dict": his,
        "val_loss": 0.3,
        "config": Configuration(seed=1),
        "scaler_state": None,
    }
    torch.save(content, directory / "atft_gat_fan_best_main.pt")
    workload = {
        "kind": "graph_forecast", "data": str(directory / "atft_data"),
        "panel": {"date": "Date", "code": "Code", "features": ["feat_*"], "nodes": 5},
        "clean": {"nan": 0, "inf": None}, "loss": "quantile", "horizon_weights": [1.0, 0.5],
        "mixed": {"huber": 0.2, "rank_ic": 0.3}, "ema": {"decay": 0.9}, "batch_size": 4, "window": 6,
        "horizons": [1, 5], "lookback": 20, "neighbours": 2, "hidden": 8, "heads": 2, "layers": 1,
        "init_map": {"rename": ATFT, "partial": True},
        "export": {"format": "state_dict", "entry": "model_state_dict", "rename": ATFT, "partial": True},
    }  # fmt: skip

    def reads(export: Path) -> dict[str, Tensor]:
        found = torch.load(export / "model.pt", weights_only=True)["model_state_dict"]
        assert set(found) > {f"temporal.lstm.{name}" for name in nn.LSTM(8, 8).state_dict()}
        plain = {his.replace(".*", ".0"): here.replace(".*", ".0") for his, here in ATFT.items()}
        return {_renamed(name, plain): one for name, one in found.items()}

    return Owner(workload, "atft_gat_fan_best_main.pt", reads)


# --- gogo2: annotations of ten minutes around a signal, with a label for each candle


def gogo2(directory: Path) -> Owner:
    """Return the job of his annotations, each with five minutes on both sides of its signal."""
    for number in range(COUNT):
        content = annotation(number, candles=12)
        at = datetime.fromisoformat(content["timestamp"])
        minutes = [
            [iso(at.astimezone(UTC) + timedelta(minutes=minute)), 3000.0, 3001.0, 2999.0, 3000.5, 2.0]
            for minute in range(-5, 6)
        ]
        content["market_state"]["ohlcv_1m"] = minutes
        content["training_labels"] = {"labels_1m": [0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 3]}
        write(directory / "test_cases", number, content)
    his = {f"module.candle_encoder.{n}.{name}": one for n, size in ((0, (8, 10)), (2, (8, 8)))
           for name, one in nn.Linear(size[1], size[0]).state_dict().items()}  # fmt: skip
    torch.save({"epoch": 4, "model_state_dict": his, "history": [0.9, 0.7]}, directory / "transformer.pt")
    names = {"prefix": "module.", "rename": {"candle_encoder.": "candles."}, "partial": True}
    workload = {
        "kind": "resident_transformer", "data": str(directory),
        "annotations": {"candles": 8, "order_book": 6, "technical": 3, "position": 2, "labels": "candle"},
        "pool": 2, "batch_size": 8, "width": 8, "heads": 2, "layers": 2, "init_map": names,
        "export": {"format": "state_dict", "file": "transformer.pt", "entry": "model_state_dict", **names},
    }  # fmt: skip

    def reads(export: Path) -> dict[str, Tensor]:
        encoder = nn.ModuleDict(
            {"candle_encoder": nn.Sequential(nn.Linear(10, 8), nn.GELU(), nn.Linear(8, 8))}
        )
        found = torch.load(export / "transformer.pt", weights_only=True)["model_state_dict"]
        encoder.load_state_dict({name.removeprefix("module."): one for name, one in found.items()})
        return {name.replace("candle_encoder", "candles"): one for name, one in encoder.state_dict().items()}

    return Owner(workload, "transformer.pt", reads)


# --- LMOL: fold files of judged pairs, an adapter of peft


def lmol(directory: Path) -> Owner:
    """Return the job of one of his folds, with an adapter that peft has written."""
    import peft
    import transformers

    from tests.fakes.workloads.language_models import tiny_llama

    head = "img1,img2,score1,score2,label"
    for name, first in (("train_fold1_30000", 0), ("eval_fold1_3000", 20), ("train_fold2_30000", 40)):
        rows = [(one, other) for one in range(first, first + 8) for other in range(first, first + 8)]
        lines = [
            f"AF{one}.jpg,AF{other}.jpg,{one / 4},{other / 4},{_answer(one, other)}"
            for one, other in rows if one != other
        ]  # fmt: skip
        (directory / "pairs").mkdir(exist_ok=True)
        (directory / "pairs" / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    model = tiny_llama(directory / "llava")
    base = transformers.AutoModelForCausalLM.from_pretrained(str(model))
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=targets, task_type="CAUSAL_LM")
    his = peft.get_peft_model(base, config)
    for name, parameter in his.named_parameters():
        if ".lora_B." in name:
            nn.init.normal_(parameter, std=0.1)
    his.save_pretrained(str(directory / "best"))
    workload = {
        "kind": "pair_classifier", "data": str(directory / "pairs"), "form": "sequence", "folds": 5,
        "fold": 0, "pretrained": str(model),
        "lora": {"rank": 2, "alpha": 4, "dropout": 0.1, "targets": targets},
        "threshold": 0.2, "batch_size": 4, "length": 16, "export": {"format": "peft"},
    }  # fmt: skip

    def reads(export: Path) -> dict[str, Tensor]:
        base = transformers.AutoModelForCausalLM.from_pretrained(str(model))
        found = peft.PeftModel.from_pretrained(base, str(export))
        return {f"model.{name}": one for name, one in found.state_dict().items() if ".lora_" in name}

    return Owner(workload, "best", reads)


def _answer(one: int, other: int) -> str:
    return "Similar" if abs(one - other) / 4 <= 0.2 else "First" if one > other else "Second"


# --- AGI2: a few texts, a checkpoint with his configuration and tokenizer in it


AGI2: Final = {
    "token_embeddings.embedding.": "token.",
    "position_embeddings.pe": "position.weight",
    "transformer_blocks.*.attention.w_q.": "blocks.*.qkv.[1/3]",
    "transformer_blocks.*.attention.w_k.": "blocks.*.qkv.[2/3]",
    "transformer_blocks.*.attention.w_v.": "blocks.*.qkv.[3/3]",
    "transformer_blocks.*.attention.w_o.": "blocks.*.attention_out.",
    "transformer_blocks.*.feed_forward.fc1.": "blocks.*.feed_in.",
    "transformer_blocks.*.feed_forward.fc2.": "blocks.*.feed_out.",
    "transformer_blocks.*.ln1.": "blocks.*.attention_norm.",
    "transformer_blocks.*.ln2.": "blocks.*.feed_norm.",
    "ln_f.": "norm.",
}


class HisModel(nn.Module):
    """His modules by their names, and their sizes."""

    def __init__(self, vocabulary: int, length: int, layers: int, width: int) -> None:
        super().__init__()
        self.token_embeddings = nn.ModuleDict({"embedding": nn.Embedding(vocabulary, width)})
        self.position_embeddings = nn.Module()
        self.position_embeddings.register_buffer("pe", torch.zeros(length, width))
        self.transformer_blocks = nn.ModuleList(_his_block(width) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)


def _his_block(width: int) -> nn.ModuleDict:
    attention = nn.ModuleDict({f"w_{name}": nn.Linear(width, width) for name in "qkvo"})
    feed = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})
    norms = {"ln1": nn.LayerNorm(width), "ln2": nn.LayerNorm(width)}
    return nn.ModuleDict({"attention": attention, "feed_forward": feed, **norms})


def agi2(directory: Path) -> Owner:
    """Return the job of his texts, with fixed positions and a vocabulary larger than the tokenizer's."""
    for name in ("corpus.txt", "corpus01.txt"):
        (directory / name).write_text("call me ishmael. some years ago, never mind how long precisely\n" * 40)
    his = HisModel(300, 16, 2, 8)
    content = {
        "epoch": 5, "model_state_dict": his.state_dict(), "optimizer_state_dict": {}, "loss": 2.5,
        "config": Configuration(n_embd=8), "tokenizer": Configuration(vocab={"a": 1}),
    }  # fmt: skip
    torch.save(content, directory / "moby.pt_epoch_5.pt")
    names = {"entry": "model_state_dict", "rename": AGI2}
    workload = {
        "kind": "causal_lm", "data": str(directory), "files": ["corpus.txt", "corpus01.txt"],
        "tokenizer": "characters", "vocabulary": 300, "positions": "sinusoidal", "context": 16, "layers": 2,
        "heads": 2, "width": 8, "batch_size": 3, "windows": "separate", "init_map": names,
        "export": {"format": "state_dict", "file": "moby.pt", **names},
    }  # fmt: skip

    def reads(export: Path) -> dict[str, Tensor]:
        model = HisModel(300, 16, 2, 8)
        model.load_state_dict(torch.load(export / "moby.pt")["model_state_dict"])
        found = model.state_dict()
        ours = {
            "token.weight": found["token_embeddings.embedding.weight"],
            "norm.weight": found["ln_f.weight"],
        }
        for n in range(2):
            begin = f"transformer_blocks.{n}.attention.w_"
            ours[f"blocks.{n}.qkv.weight"] = torch.cat([found[f"{begin}{part}.weight"] for part in "qkv"])
        return ours

    return Owner(workload, "moby.pt_epoch_5.pt", reads)


def _renamed(name: str, beginnings: Mapping[str, str]) -> str:
    his = next(each for each in beginnings if name.startswith(each))
    return beginnings[his] + name.removeprefix(his)


OWNERS: Final[Mapping[str, Callable[[Path], Owner]]] = {
    one.__name__: one for one in (mobileposer, gogooku3, gogo2, lmol, agi2)
}
