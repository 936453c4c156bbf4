"""The cost of a decision by a policy of a hundred rules at the end of an attempt: the 99th percentile.

Each decision evaluates every rule, also those after the rule that answers, because the record contains
the result of each.  The ends of attempts are of all kinds, so that sometimes an early rule answers and
sometimes the last.  The figure is the processor time of the deciding thread, which excludes other work of
the machine.
"""

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from bench.support import interleave
from bench.support.result import Aim, Line, Result, in_milliseconds
from bench.support.scratch import Scratch
from bench.support.stats import percentile
from runner.core.policy.decision import Situation
from runner.core.policy.evaluate import decide
from runner.core.policy.explain import DecisionSubject, make_record
from runner.core.policy.facts import DecisionPoint, Facts
from runner.core.policy.history import History
from runner.core.policy.model import Policy
from runner.files.policy.load import load_named_policy, parse_policy

BENCH: Final = "decide"
RULES: Final = 100
AIM_MS: Final = 1.0
DECISIONS: Final = 1000
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the 99th percentile of a decision compared with the default policy, and that with its record."""
    large, default = make_policy(RULES), load_named_policy("default")
    contestants = {
        "large": time_slowest(large, with_record=False),
        "default": time_slowest(default, with_record=False),
        "record": time_slowest(large, with_record=True),
        "default record": time_slowest(default, with_record=True),
    }
    took = interleave.interleave(scratch.effort.starts, scratch.effort.warmups, contestants)
    series = {name: in_milliseconds(LABELS[name], values) for name, values in took.items()}
    yield Result(BENCH, series["large"], series["default"], Aim(AIM_MS, "p50"))
    yield Result(
        BENCH, series["record"], series["default record"], note="the record as values, not yet written"
    )


LABELS: Final = {
    "large": f"p99 of deciding, {RULES} rules",
    "default": "the same, default policy",
    "record": f"p99 of deciding and the record, {RULES} rules",
    "default record": "the same, default policy",
}


def make_policy(count: int) -> Policy:
    """Return a policy of ``count`` rules, each with a few facts; the last rule is always true."""
    rules = [
        f"  - name: rule-{number}\n"
        f"    when: {{exit.code: {{in: [{number}, {number + 1}]}}, phase: {{in: [train, eval]}}, "
        f"any: [{{progress.step: {{gt: {number * 10}}}}}, {{not: {{oom.host: true}}}}], "
        f"root: cause-{number}}}\n"
        f"    do: resume\n    with: {{micro_batch: halve}}\n    tries: 3\n"
        for number in range(count - 1)
    ]
    text = "policy: 1\non_exit:\n" + "".join(rules) + "  - {name: other, when: {}, do: resume}\n"
    return parse_policy(text.encode(), Path("bench.yaml"))


def exits() -> Iterator[Facts]:
    """Yield ends of attempts, cycling through all kinds."""
    for number in itertools.cycle(range(RULES)):
        yield {
            "exit.class": "exception",
            "exit.code": number,
            "cause": "device_out_of_memory",
            "root": f"cause-{number}",
            "phase": ("train", "eval", "save")[number % 3],
            "oom.device": number % 2 == 0,
            "oom.host": False,
            "progress.step": number * 10 + 5,
            "progress.advanced": number % 5 == 0,
            "checkpoint.present": True,
            "checkpoint.valid": True,
            "checkpoint.compatible": True,
            "checkpoint.step": number * 10,
            "effective.micro_batch": 256,
        }


def time_slowest(policy: Policy, *, with_record: bool) -> Callable[[], float]:
    """Return a contestant that reports the 99th percentile of the seconds of a decision."""

    def measure() -> float:
        gc.collect()
        known = itertools.islice(exits(), DECISIONS)
        return percentile([_time_decision(policy, each, with_record=with_record) for each in known], 0.99)

    return measure


def _time_decision(policy: Policy, known: Facts, *, with_record: bool) -> float:
    situation = Situation(known, NOW, NOW - timedelta(hours=1), "spec", "job")
    began = time.thread_time()
    decision = decide(policy, DecisionPoint.EXIT, History(), situation)
    if with_record:
        make_record(DecisionSubject("job", 1, "digest"), policy, situation, decision)
    return time.thread_time() - began
