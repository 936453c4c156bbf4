from itertools import islice

from bench.cases.decide import AIM_MS, RULES, exits, make_policy, measure
from bench.support.result import Result
from bench.support.scratch import QUICK, open_scratch
from runner.core.policy.conditions import evaluate


def test_the_policy_that_is_measured_has_a_hundred_rules_of_which_most_can_answer() -> None:
    policy = make_policy(RULES)
    assert len(policy.on_exit) == RULES
    facts = list(islice(exits(), RULES))
    true = {rule.name for rule in policy.on_exit for known in facts if evaluate(rule.when, known).truth}
    assert len(true) > RULES / 2


def test_what_is_measured_is_the_worst_hundredth_in_milliseconds() -> None:
    with open_scratch(QUICK) as scratch:
        deciding, recording = list(measure(scratch))
    assert isinstance(deciding, Result)
    assert isinstance(recording, Result)
    assert deciding.aim is not None
    assert (deciding.aim.limit, deciding.ours.unit) == (AIM_MS, "ms")
    assert len(deciding.ours.values) == QUICK.starts
    assert min(*recording.ours.values, *deciding.ours.values) > 0
