"""The page of a sweep: the parameters and the results of the jobs of a matrix, in a picture and a table."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from runner.dashboard.charts import FIRST
from runner.dashboard.daemon import Daemon
from runner.dashboard.parallel import SweepJob, draw_sweep

LARGEST: Final = re.compile(
    r"(^|[._/ -])(acc|accuracy|auc|auroc|bleu|correlation|f1|ic|ir|items_per_s|map|ndcg|precision|psnr|r2"
    r"|recall|return|reward|rouge|score|sharpe|ssim|throughput|top1|top5)([._/@ -]|$)",
    re.IGNORECASE,
)
"""Names of results that are better the larger they are; of all others the least is the best."""

BEST: Final = ("least", "largest")


def sweep(daemon: Daemon, query: Mapping[str, str], _jobs: Sequence[str], _now: datetime) -> dict[str, Any]:
    """Return the jobs of a matrix with their parameters and last numbers."""
    found = daemon.get("/v1/jobs", {"sweep": query["ref"]})["jobs"]
    rows = [_row(daemon, each) for each in found]
    metric = query.get("metric") or _usual_metric(rows)
    chosen = query.get("best", "")
    which = chosen if chosen in BEST else usual_best(metric)
    best = find_best(rows, metric, which)
    drawn = [SweepJob(row["job"]["name"], row["values"], row["numbers"].get(metric)) for row in rows]
    marked = None if best is None else drawn[rows.index(best)]
    return {
        "rows": rows,
        "names": sorted({name for row in rows for name in row["values"]}),
        "metric": metric,
        "metrics": sorted({name for row in rows for name in row["numbers"]}),
        "best": best,
        "which": which,
        "chosen": which if chosen in BEST else "",
        "chart": draw_sweep(drawn, metric, marked),
        "ref": query["ref"],
    }


def usual_best(metric: str) -> str:
    """Return True if the least or the largest of a result is the best one, by its name."""
    return "largest" if LARGEST.search(metric) else "least"


def find_best(rows: Sequence[dict[str, Any]], metric: str, which: str) -> dict[str, Any] | None:
    """Return the row with the best result; None if none has one."""
    known = [row for row in rows if metric in row["numbers"]]
    choose = max if which == "largest" else min
    return choose(known, key=lambda row: float(row["numbers"][metric]), default=None)


def _row(daemon: Daemon, found: dict[str, Any]) -> dict[str, Any]:
    curves = daemon.job(found["id"], "/curves")["curves"]
    last = {name: points[-1][2] for name, points in curves.items() if points}
    numbers = {name: each for name, each in last.items() if each is not None and math.isfinite(each)}
    detail = daemon.job(found["id"])
    values = ((detail.get("revision") or {}).get("sweep") or {}).get("values") or {}
    return {"job": found, "numbers": numbers, "values": values}


def _usual_metric(rows: Iterable[Mapping[str, Any]]) -> str:
    names = {name for row in rows for name in row["numbers"]}
    return next((name for name in ("eval_loss", *FIRST, *sorted(names)) if name in names), "")
