"""Graphs of stocks in validation: kept, beside built again for each batch, which a source project did.

The panel is made up: stocks with listings, delistings and gaps, graphs of 256 nodes with 10 neighbours each.
``rebuilt`` filters a long table by dates and by each stock, correlates, and loops over the edges in Python.
The first pair is one graph, the second a validation batch of one graph with the forward pass of a small
model, the third all graphs of a day of 4,000 stocks.  The figures are the processor time of one thread.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from bench.support import interleave
from bench.support.result import Aim, Line, Result, in_milliseconds
from bench.support.scratch import Scratch
from jobs.contract import Profile
from jobs.contract.plans.graph_forecast import GraphForecast, Panel

BENCH: Final = "graphs"
NODES: Final = 256
STOCKS: Final = 4000
NEIGHBOURS: Final = 10
DAYS: Final = 160
AIM: Final = 1 / 7
"""gogooku3's document expects validation to become 7 to 10 times faster."""


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield kept graphs compared with rebuilt ones: one, a batch of validation, and those of a day."""
    stocks = max(NODES, int(STOCKS * scratch.effort.turn_share))
    few, many = made(NODES), made(stocks)
    groups = many["kept"].source.groups_Gn.shape[0]
    timed = partial(interleave.time_call, clock=time.thread_time)
    contestants: dict[str, Callable[[], float]] = {}
    for name in ("kept", "rebuilt"):
        contestants[f"{name} graph"] = timed(partial(look, few[name], 1))
        contestants[f"{name} batch"] = timed(partial(validate, few[name]))
        contestants[f"{name} day"] = timed(partial(look, many[name], groups))
    took = interleave.interleave(scratch.effort.starts, scratch.effort.warmups, contestants)
    for what, label in (
        ("graph", f"one graph, {NODES} nodes x {NEIGHBOURS}"),
        ("batch", f"a validation batch, {NODES} nodes"),
        ("day", f"{groups} graphs of a day, {stocks:,} stocks"),
    ):
        kept, rebuilt = (in_milliseconds(f"{label}, {n}", took[f"{n} {what}"]) for n in ("kept", "rebuilt"))
        yield Result(BENCH, kept, rebuilt, Aim(AIM, "ratio") if what == "batch" else None)


def made(stocks: int) -> dict[str, Any]:
    """Return the workload on a panel of so many stocks, with its graphs kept and with graphs rebuilt."""
    import torch

    from jobs.training.switches import Switches
    from jobs.workloads.graph_forecast.workload import GraphForecaster
    from jobs.workloads.protocol import BuildContext

    torch.set_num_threads(1)
    plan = GraphForecast(
        data="synthetic-panel",
        panel=Panel(nodes=NODES),
        synthetic_assets=stocks,
        synthetic_days=DAYS,
        neighbours=NEIGHBOURS,
        batch_size=1,
        eval_batches=4,
    )
    found = {}
    for name, cache in (("kept", "memory"), ("rebuilt", "off")):
        profile = Profile().model_copy(update={"graph_cache": cache})
        found[name] = GraphForecaster(plan, BuildContext(1, Switches(profile)))
        found[name].model.eval()
    return found


def look(workload: Any, graphs: int) -> None:
    """Take the graphs of the last held-out day, one for each group of stocks."""
    import torch

    days = len(workload.source.split.days)
    workload.source.graphs.of(torch.arange(graphs) * days + days - 1, validating=True)


def validate(workload: Any) -> None:
    """Evaluate one held-out batch."""
    import torch

    with torch.inference_mode():
        workload.score(workload.source.held_out(0))
