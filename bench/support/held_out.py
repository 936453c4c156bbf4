"""Further situations, written after the policy: other shapes than those that it was made with.

Kinds of them that were decided wrongly at first, and for which the arithmetic was mended: what cannot end
within the time limit, evaluations that are rarer than the time in which a rate is measured or that have not
come yet, hosts on which nothing was interrupted, slower changes of jobs that would gain by a save alone,
and jobs that have taken a few steps.
"""

from dataclasses import replace
from typing import Final

from bench.support.changes import Offer

_LONG: Final = Offer("", 20000, 6000, 2.0, 3.0, saved=5500, every=500, start_s=900, stop_s=60)
_NIGHT: Final = Offer("", 50000, 20000, 1.0, 1.4, saved=19900, every=100, start_s=60, stop_s=5)
_FIRST: Final = Offer("", 3000, 90, 0.4, 1.2, start_s=30)
_EVAL: Final = Offer(
    "", 5000, 2500, 1.0, 1.0, saved=2500, every=500, start_s=40, eval_every=500, eval_now_s=900,
    eval_new_s=120, evaluated=0.3,
)  # fmt: skip
_WAVES: Final = replace(_NIGHT, noise=0.2, alike=0.9)
_OWN: Final = Offer("", 8000, 3000, 2.0, 3.2, kind="C", every=1000, saved=3000, start_s=15)


def _named(base: Offer, title: str, **other: object) -> Offer:
    return replace(base, title=title, **other)  # type: ignore[arg-type]  # fields of Offer


HELD_OUT: Final = (
    _named(_LONG, "start 15 min, 1.5x"),
    _named(_LONG, "start 15 min, 1.05x", new=2.1),
    _named(_LONG, "start 15 min, nearly over, 3x", done=19000, saved=19000, new=6.0),
    _named(_LONG, "start 15 min, slower", new=1.0),
    _named(_LONG, "start 15 min, nothing saved, 4x", saved=0, every=None, new=8.0, done=1000),
    _named(_LONG, "start 2 h, 1.3x", start_s=7200, new=2.6, saved=6000),
    _named(_EVAL, "evaluation 30 %, 7.5x faster evals"),
    _named(_EVAL, "evaluation 97 %, 7.5x faster evals", evaluated=0.97),
    _named(_EVAL, "evaluation 30 %, last one", done=5000, saved=5000),
    _named(_EVAL, "evaluation 30 %, last one, nothing saved", done=5000, saved=0, every=None),
    _named(
        _EVAL,
        "evaluation 50 % with bar, nothing saved early",
        done=500,
        saved=0,
        every=None,
        evaluated=0.5,
        bar=True,
    ),
    _named(_EVAL, "evaluation 90 % bar, evals slower", eval_new_s=1800, evaluated=0.9, bar=True),
    _named(_NIGHT, "wide noise 1.0, 1.4x", noise=1.0),
    _named(_NIGHT, "wide noise 1.0, 0.9x", noise=1.0, new=0.9),
    _named(_NIGHT, "wide noise 1.0, canary 25, 2x", noise=1.0, canary=25, new=2.0),
    _named(_NIGHT, "noise 0.8, canary 25, 1.1x", noise=0.8, canary=25, new=1.1),
    _named(_NIGHT, "noise 2, 1.15x", noise=2.0, new=1.15),
    _named(_NIGHT, "C allowed, faster", kind="C"),
    _named(_NIGHT, "C allowed, slower 0.52", kind="C", new=0.52),
    _named(_NIGHT, "C not allowed, 3x", kind="C", new=3.0, allowed=False),
    _named(_NIGHT, "E agreed, 5x", kind="E", new=5.0, approved=True),
    _named(_NIGHT, "E not agreed", kind="E", new=5.0),
    _named(_NIGHT, "E agreed early, 1.1x", kind="E", new=1.1, approved=True, done=1000, saved=900),
    _named(_OWN, "program with checkpoint, 1.6x"),
    _named(_OWN, "program asked, 1.6x", on_demand=True, saved=2000, every=None),
    _named(_OWN, "program nothing saved, late", saved=0, every=None, done=6000, new=6.0),
    _named(_OWN, "program nothing saved, early", saved=0, every=None, done=300, new=2.6),
    _named(_OWN, "program 0.99x", new=1.98),
    _named(_NIGHT, "deadline: only keep fits", left_s=30100.0, new=0.9),
    _named(_NIGHT, "deadline: only resume", left_s=26000.0, new=1.3),
    _named(
        _NIGHT, "deadline: only restart fits (nothing saved)", left_s=27000.0, saved=0, every=None, new=2.5
    ),
    _named(_NIGHT, "deadline: none fits, 1.3x", left_s=20000.0, new=1.3),
    _named(_NIGHT, "deadline: keep fits, restart not", left_s=31000.0, saved=0, every=None, new=1.5),
    _named(_NIGHT, "parked 1.4x", stands=True, on_demand=True, saved=20000),
    _named(_NIGHT, "parked 0.9x", stands=True, on_demand=True, saved=20000, new=0.9),
    _named(_NIGHT, "parked 1.03x", stands=True, on_demand=True, saved=20000, new=1.03),
    _named(_NIGHT, "parked, last 2 min, 1.5x", stands=True, on_demand=True, done=49900, saved=49900, new=1.5),
    _named(_FIRST, "no checkpoint yet, 3x"),
    _named(_FIRST, "no checkpoint, late, 3x", done=2700),
    _named(_FIRST, "no checkpoint, 1.2x at 60%", done=1800, new=0.48),
    _named(_FIRST, "no checkpoint, 1.08x at 3%", new=0.432),
    _named(_NIGHT, "beside 3x, 1.5x", beside=3.0, new=1.5),
    _named(_NIGHT, "beside 1.3x, 1.1x", beside=1.3, new=1.1),
    _named(_NIGHT, "beside 1.3x, 0.8x", beside=1.3, new=0.8),
    _named(
        _NIGHT, "interrupted hourly, 1.4x", interrupted=tuple(3600.0 * i for i in range(1, 6)), mean_s=3600.0
    ),
    _named(
        _NIGHT,
        "interrupted hourly, no checkpoints before, 1.4x",
        every=10000,
        saved=10000,
        done=19000,
        interrupted=tuple(4000.0 * i for i in range(1, 5)),
        mean_s=4000.0,
    ),
    _named(_NIGHT, "1.0x same", new=1.0),
    _named(_NIGHT, "1.02x huge rest", new=1.02, total=500000),
    _named(_EVAL, "evals 9x faster, steps slower 0.8", new=0.8, eval_new_s=100, evaluated=None),
    _named(_EVAL, "evals slower 3x, steps 2x", new=2.0, eval_new_s=2700, evaluated=None),
    _named(_EVAL, "no evaluation so far, 7.5x faster evals", done=400, saved=0, every=None),
    _named(
        _EVAL, "no evaluation so far, steps 1.5x", done=400, saved=300, every=100, new=1.5, eval_new_s=900
    ),
    _named(
        _EVAL, "no evaluation so far, steps 0.8x", done=400, saved=300, every=100, new=0.8, eval_new_s=900
    ),
    _named(
        _NIGHT,
        "75 h with nothing saved, 1 h left, 4x",
        total=273600,
        done=270000,
        saved=0,
        every=None,
        new=4.0,
    ),
    _named(
        _NIGHT,
        "interrupted hourly, saves when asked, 0.8x",
        every=None,
        saved=0,
        on_demand=True,
        new=0.8,
        mean_s=3600.0,
    ),
    _named(_NIGHT, "twelve steps done, 3x", done=12, saved=0, every=1000, new=3.0),
    _named(_NIGHT, "twelve steps done, 0.8x", done=12, saved=0, every=1000, new=0.8),
    _named(_NIGHT, "parked after twelve steps, 3x", stands=True, on_demand=True, done=12, saved=12, new=3.0),
    _named(_NIGHT, "noise 0.3, 1.1x", noise=0.3, new=1.1),
    _named(_NIGHT, "noise 0.3, 0.9x", noise=0.3, new=0.9),
    _named(_NIGHT, "noise 0.3, deadline: surely late, 1.3x in time", noise=0.3, left_s=24500.0, new=1.3),
    _named(_NIGHT, "deadline, and no canary", left_s=20000.0, measured=False),
    _named(_NIGHT, "a minute left, 10x", done=49940, saved=49900, new=10.0),
    _named(_LONG, "start 15 min, checkpoint 5,000 steps old, 3x", saved=1000, every=None, new=6.0),
    _named(_LONG, "start 15 min, checkpoint 5,000 steps old, 1.2x", saved=1000, every=None, new=2.4),
    _named(_WAVES, "waves of load, 0.97x", new=0.97),
    _named(_WAVES, "waves of load, 0.8x", new=0.8),
    _named(_WAVES, "waves of load, as fast as before", new=1.0),
    _named(_WAVES, "waves of load, 2x", new=2.0),
    _named(_WAVES, "waves of load, parked, 0.97x", new=0.97, stands=True, on_demand=True, saved=20000),
    _named(_WAVES, "waves of load, parked, 2x", new=2.0, stands=True, on_demand=True, saved=20000),
    _named(_NIGHT, "the machine gets half as fast, 0.95x", drift=1.0, new=0.95),
    _named(_NIGHT, "the machine gets half as fast, 1.5x", drift=1.0, new=1.5),
    _named(_NIGHT, "the machine gets twice as fast, 0.95x", drift=-0.5, new=0.95),
    _named(_NIGHT, "the machine gets twice as fast, 1.5x", drift=-0.5, new=1.5),
    _named(_NIGHT, "the machine gets twice as fast, parked, 0.95x", drift=-0.5, new=0.95, stands=True,
           on_demand=True, saved=20000),
    _named(_EVAL, "an evaluation in the canary, 0.9x", evaluated=None, done=1200, saved=1000, new=0.9,
           eval_new_s=900),
    _named(_EVAL, "evaluations 7.5x faster, the last one alone is left", done=4990, saved=4500,
           evaluated=None),
    _named(_EVAL, "faster evaluations, none is left to come before the end of a long epoch", evaluated=None,
           eval_every=5000, done=100, saved=100, every=100),
    _named(_NIGHT, "C that nobody allowed, 10x, waves of load", kind="C", allowed=False, new=10.0, alike=0.9),
    _named(_NIGHT, "C allowed, 1.5x, a start longer than what is left", kind="C", new=1.5, done=49950,
           saved=49900),
    _named(_NIGHT, "the last step is left, 10x", done=49999, saved=49900, new=10.0),
    _named(_LONG, "start 15 min, checkpoint 30 min old, 10 min to gain", done=18000, saved=14400, new=6.0),
    _named(_NIGHT, "interrupted every 10 min, checkpoints every 100 s, 1.3x", new=1.3, mean_s=600.0,
           interrupted=tuple(600.0 * i for i in range(1, 60))),
    _named(_NIGHT, "interrupted every 10 min, checkpoints every 100 s, 0.9x", new=0.9, mean_s=600.0,
           interrupted=tuple(600.0 * i for i in range(1, 60))),
)  # fmt: skip
