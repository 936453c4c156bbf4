"""Comparison of profiles from the reports of their jobs, as numbers, a table and JSON.

The module does no I/O.  A ratio is meaningful only if the work was equal, so the table marks arms whose
metrics or steps differ from those of the first.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOLERANCE: Final = 0.01
"""Metrics that differ by more than this share of the first arm's are not those of equal work."""

UNSTEADY: Final = 0.25
"""The share of the first lines that is left out: caches fill, threads start."""

HEAD: Final = ("arm", "items/s (spread)", "ratio", "eval s", "ratio", "memory", "data", "metrics")

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures from the reports of one job."""

    job: str
    step: int
    items_per_s: float | None
    eval_s: float | None
    """Seconds of one evaluation."""
    memory_bytes: float | None
    data_share: float | None
    """Share of step time spent waiting for batches."""
    seconds: Mapping[str, float]
    """By phase."""
    metrics: Mapping[str, float]
    effective: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ArmRow:
    """One arm over all rounds; a figure is None if no job of the arm reported it."""

    name: str
    items_per_s: float | None
    items_low: float | None
    items_high: float | None
    items_ratio: float | None
    eval_s: float | None
    eval_ratio: float | None
    """Speed beside the first arm's."""
    memory_bytes: float | None
    data_share: float | None
    seconds: Mapping[str, float]
    metrics: Mapping[str, float]
    effective: Mapping[str, Any]
    jobs: Sequence[str]
    differs: Sequence[str]
    """Differences that show that the work was not the first arm's."""
    eval_low: float | None = None
    eval_high: float | None = None


def make_measurement(
    job: str, result: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], effective: Mapping[str, Any],
    memory_bytes: float | None,
) -> Measurement:  # fmt: skip
    """Return the numbers in the reports of one job; ``lines`` are those of ``metrics.jsonl``."""
    said = result.get("metrics") or {}
    seconds = {
        key.removeprefix("seconds_"): value for key, value in said.items() if key.startswith("seconds_")
    }
    steps = [line for line in lines if "items_per_s" in line]
    evaluations = sum(1 for line in lines if any(key.startswith("eval_") for key in line))
    spent = seconds.get("eval")
    peaks = [value for line in lines for key, value in line.items() if "peak" in key and _is_number(value)]
    return Measurement(
        job=job,
        step=int(result.get("step") or 0),
        items_per_s=_steady(steps, "items_per_s"),
        eval_s=spent / evaluations if spent is not None and evaluations else None,
        memory_bytes=max([*peaks, *([memory_bytes] if memory_bytes is not None else [])], default=None),
        data_share=_steady(steps, "data_wait"),
        seconds=seconds,
        metrics={key: value for key, value in said.items() if not key.startswith("seconds_")},
        effective=effective,
    )


def compare(arms: Mapping[str, Sequence[Measurement]]) -> list[ArmRow]:
    """Return one row per arm, in order, each compared with the first; every arm needs a measurement."""
    first = next(iter(arms.values()))
    return [_row(name, rounds, first) for name, rounds in arms.items()]


def differences(ours: Measurement, theirs: Measurement, tolerance: float = TOLERANCE) -> list[str]:
    """Return the evidence that two jobs did not do equal work, one phrase each.

    The loss of the last batch counts only where nothing was evaluated.
    """
    found = [f"{ours.step} steps, not {theirs.step}"] if ours.step != theirs.step else []
    held_out = {key: value for key, value in theirs.metrics.items() if key.startswith("eval_")}
    for key, value in (held_out or {k: v for k, v in theirs.metrics.items() if k == "loss"}).items():
        mine = ours.metrics.get(key)
        if mine is None:
            found.append(f"{key} is missing")
        elif abs(mine - value) > tolerance * max(abs(value), 1e-12):
            found.append(f"{key} {mine:.4g}, not {value:.4g}")
    return found


def table(rows: Sequence[ArmRow]) -> str:
    """Return the rows as a text table, followed by the differences in the work."""
    cells = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEAD))]
    text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells]
    limit = f"more than {TOLERANCE:.0%}"
    text += [f"not equal work ({limit}): {row.name}: {'; '.join(row.differs)}" for row in rows if row.differs]
    if not any(row.differs for row in rows):
        text.append(
            f"equal work: steps are the same, and no loss on held-out data differs by {limit} from the first"
        )
    return "\n".join(text)


def as_json(rows: Sequence[ArmRow], skipped: Mapping[str, str], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return all results for programs; ``about`` describes the job and the machine."""
    return {**about, "tolerance": TOLERANCE, "arms": [asdict(row) for row in rows], "skipped": dict(skipped)}


def _row(name: str, rounds: Sequence[Measurement], first: Sequence[Measurement]) -> ArmRow:
    rates = [each.items_per_s for each in rounds if each.items_per_s is not None]
    rate, evaluation = _median(rounds, "items_per_s"), _median(rounds, "eval_s")
    memory = [each.memory_bytes for each in rounds if each.memory_bytes is not None]
    evaluations = [each.eval_s for each in rounds if each.eval_s is not None]
    return ArmRow(
        eval_low=min(evaluations, default=None),
        eval_high=max(evaluations, default=None),
        name=name,
        items_per_s=rate,
        items_low=min(rates, default=None),
        items_high=max(rates, default=None),
        items_ratio=_ratio(rate, _median(first, "items_per_s")),
        eval_s=evaluation,
        eval_ratio=_ratio(_median(first, "eval_s"), evaluation),
        memory_bytes=max(memory, default=None),
        data_share=_median(rounds, "data_share"),
        seconds=_medians([each.seconds for each in rounds]),
        metrics=rounds[-1].metrics,
        effective=rounds[-1].effective,
        jobs=[each.job for each in rounds],
        differs=sorted({phrase for each in rounds for phrase in differences(each, first[0])}),
    )


def _cells(row: ArmRow) -> tuple[str, ...]:
    spread = (
        "-"
        if row.items_per_s is None
        else f"{row.items_per_s:,.0f} ({row.items_low:,.0f}-{row.items_high:,.0f})"
    )
    shown = [f"{key} {value:.4g}" for key, value in row.metrics.items() if key in {"loss", "eval_loss"}]
    return (
        row.name,
        spread,
        _text(row.items_ratio, "{:.2f} x"),
        _text(row.eval_s, "{:.3f}"),
        _text(row.eval_ratio, "{:.2f} x"),
        _text(None if row.memory_bytes is None else row.memory_bytes / 2**20, "{:.0f} MiB"),
        _text(row.data_share, "{:.0%}"),
        ", ".join(shown) or "-",
    )


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _steady(lines: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the median of a figure over all but the first lines."""
    values = [line[key] for line in lines if _is_number(line.get(key))]
    skip = min(max(1, int(len(values) * UNSTEADY)), len(values) - 1)
    return statistics.median(values[skip:]) if values else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _median(rounds: Sequence[Measurement], name: str) -> float | None:
    values = [value for each in rounds if (value := getattr(each, name)) is not None]
    return statistics.median(values) if values else None


def _medians(rounds: Sequence[Mapping[str, float]]) -> Numbers:
    keys = dict.fromkeys(key for each in rounds for key in each)
    return {key: statistics.median([each[key] for each in rounds if key in each]) for key in keys}


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None
