"""The headlines of the five source documents, before and after, at the sizes of their models.

The arms of a source run in turns on one device with equal threads, and each first trains the same steps from
the same weights.  Data are made up.  A row says what fell back; an arm in which a switch that should differ
did not is not compared.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jobs.contract import Profile
from scripts.gpu_report.context import CannotMeasureHere, Context
from scripts.gpu_report.data import language_model, plan_of
from scripts.gpu_report.fast import EQUAL_STEPS, rows_of
from scripts.gpu_report.report import Finding, measured, not_run

TITLE: Final = "the headlines of the five sources"

THREADS: Final = 4
"""Of every arm: loader processes take no thread from the training."""


START_SHARE: Final = 0.75
"""Share of a headline's time in which its arms must be ready: they make data, compile and rehearse."""


@dataclass(frozen=True, slots=True)
class Headline:
    """A promise: the plan, and the arms as a profile and its changes, the state before first."""

    kind: str
    plan: Mapping[str, Any]
    arms: Mapping[str, tuple[str, Mapping[str, Any]]]
    tiny: Mapping[str, Any]


PARTS: Final = {"micro_batch": 2}
"""Of the panel: the networks of 189 features take gigabytes, and all arms are on the device together."""

WINDOWS: Final = {"shared_targets": True, "stream_buffer": 1000}
"""Of the joints: without these, two cores make a batch of 8,192 windows in 20 to 50 s, and not in 2."""


def _panel(nodes: int) -> Mapping[str, Any]:
    return {
        "features": ["returns_1d", "signal_*", "noise_*"], "target": "target_{horizon}d", "nodes": nodes,
        "split": "2020-12-01", "embargo": 20,
    }  # fmt: skip


HEADLINES: Final[Mapping[str, Headline]] = {
    "MobilePoser, joints, 8,192 windows a step": Headline(
        "imu_stream",
        {
            "data": "synthetic-imu", "module": "joints", "synthetic_sequences": 400, "window": 125,
            "batch_size": 8192, "hidden": 256, "layers": 2, "bidirectional": True, "eval_batches": 1,
        },
        {
            "before: 64 x 128": ("mobileposer-before", WINDOWS),
            "8 x 1,024": ("mobileposer-after", {**WINDOWS, "micro_batch": 1024}),
            "after: 16 x 512": ("mobileposer-after", WINDOWS),
        },
        {"window": 20, "synthetic_sequences": 12, "batch_size": 16, "hidden": 8, "layers": 1},
    ),
    "gogooku3, a panel of 4,096 stocks of 189 features": Headline(
        "graph_forecast",
        {
            "data": "synthetic-panel", "synthetic_assets": 512, "synthetic_days": 300, "window": 20,
            "synthetic_features": 189, "panel": _panel(256), "horizons": (1, 5, 10, 20), "neighbours": 10,
            "loss": "quantile", "variable_selection": True, "hidden": 128, "heads": 4, "layers": 2,
            "batch_size": 16, "eval_batches": 8,
        },
        {
            "before": ("gogooku3-before", PARTS),
            "after": ("gogooku3-after", PARTS),
            "after, no cache": ("gogooku3-after", {**PARTS, "graph_cache": "off"}),
            "after, no bf16": ("gogooku3-after", {**PARTS, "precision": "tf32"}),
            "after, not compiled": ("gogooku3-after", {**PARTS, "compile": "off"}),
        },
        {"synthetic_assets": 16, "synthetic_features": 9, "hidden": 8, "heads": 2, "layers": 1,
         "batch_size": 2, "eval_batches": 1, "panel": _panel(8)},
    ),
    "gogo2, annotations, 46.5 M parameters": Headline(
        "resident_transformer",
        {
            "data": "synthetic-annotations", "synthetic_annotations": 100, "batch_size": 16, "pool": 10,
            "annotations": {"frames": ["1s", "1m", "1h", "1d"], "candles": 600, "order_book": 100,
                            "technical": 40, "position": 5},
            "layers": 12, "heads": 16, "width": 560, "eval_batches": 1,
        },
        {
            "before: host": ("gogo2-before", {}),
            "pinned": ("gogo2-after", {"placement": "pinned"}),
            "after: device": ("gogo2-after", {}),
        },
        {"synthetic_annotations": 24, "batch_size": 2, "layers": 1, "heads": 2, "width": 16, "pool": 2,
         "annotations": {"frames": ["1s", "1m"], "candles": 20}},
    ),
    "LMOL, LoRA on 1.1 B parameters": Headline(
        "pair_classifier",
        {
            "form": "sequence", "batch_size": 8, "length": 96, "eval_batches": 1,
            "lora": {"rank": 8, "alpha": 32, "dropout": 0.0,
                     "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]},
        },
        {"before": ("lmol-before", {}), "after": ("lmol-after", {})},
        {"batch_size": 4, "length": 32},
    ),
    "AGI2, 124 M parameters, 1,024 tokens of 50,257": Headline(
        "causal_lm",
        {
            "batch_size": 12, "context": 1024, "layers": 12, "heads": 12, "width": 768, "vocabulary": 50257,
            "positions": "sinusoidal", "eval_batches": 1,
        },
        {
            "before: fp32, mask rebuilt": ("agi2-before", {}),
            "after: fp16, mask kept": ("agi2-after", {}),
            "bf16, fused, compiled": (
                "agi2-after", {"precision": "bf16", "attention": "fused", "compile": "default"},
            ),
        },
        {"batch_size": 2, "context": 16, "layers": 1, "heads": 2, "width": 16,
         "vocabulary": 300},
    ),
}  # fmt: skip


def run(context: Context) -> Iterator[Finding]:
    """Yield a table and a headline for each source."""
    for number, (name, headline) in enumerate(HEADLINES.items()):
        share_s = context.left_s / (len(HEADLINES) - number)
        try:
            yield _source(context, name, headline, time.monotonic() + share_s)
        except CannotMeasureHere as error:
            yield not_run(name, str(error))


def _source(context: Context, name: str, headline: Headline, until: float) -> Finding:
    fields = context.sized(headline.plan, {**headline.plan, **headline.tiny})
    plan = {**plan_of(headline.kind, context), **fields, "steps": 10**6, "eval_every": None}
    plan |= {"log_every": EQUAL_STEPS, "warmup_steps": 4}
    if plan.get("form") == "sequence":
        for field in ("group", "layers", "heads", "width"):  # of the other form, and of a model of its own
            del plan[field]
        plan["pretrained"] = str(language_model(context))
    arms = tuple(headline.arms)
    chosen = context.sized(arms, (arms[0], arms[-1]))
    profiles = {arm: _profile(context, *headline.arms[arm]) for arm in chosen}
    specs = {arm: context.spec(plan, profile) for arm, profile in profiles.items()}
    ready_until = time.monotonic() + START_SHARE * (until - time.monotonic())
    folder = context.folder(f"sources-{headline.kind}")
    rows = rows_of(context, specs, folder, ready_until, until)
    return measured(name, summary(rows), rows=rows)


def _profile(context: Context, name: str, changes: Mapping[str, Any]) -> Profile:
    """Return the profile of an arm; a rehearsal compiles the smallest model, too.

    A CPU has no LSTM in fp16, so a rehearsal trains in fp32 in its place.
    """
    profile = context.profile(name, **{**changes, "threads": context.sized(THREADS, 1)})
    compiled = changes.get("compile", "off")
    if context.rehearsal and profile.precision == "fp16":
        profile = profile.model_copy(update={"precision": "fp32"})
    return profile.model_copy(update={"compile": compiled}) if compiled != "off" else profile


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the headline: the rate of each arm against the state before, with what was not as asked."""
    told = []
    for row in rows if not rows[0]["failure"] else ():  # without the state before there is no ratio
        if row["x baseline"] is not None:
            fell_back = f" (fell back: {row['fell back']})" if row["fell back"] else ""
            work = "" if row["work"] == "equal" else f" (work {row['work']})"
            told.append(f"{row['arm']} {row['x baseline']:.2f} x{work}{fell_back}")
    failed = [f"{row['arm']} failed: {row['failure']}" for row in rows if row["failure"]]
    return "; ".join([*told, *failed]) or "no arm was ready in time"
