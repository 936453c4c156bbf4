"""Every switch is accounted for: in force, replaced by something else, or of no use here."""

from jobs.contract import SWITCHES, Profile
from jobs.training.switches import Switches
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make


def test_a_switch_that_nobody_mentions_is_reported_as_not_used() -> None:
    report = Switches(Profile(loader_prefetch=7)).report()
    assert set(report) == set(SWITCHES)
    unused = report["loader_prefetch"]
    assert (unused.requested, unused.applied, unused.verified) == ("7", None, None)


def test_a_switch_in_force_is_what_was_requested_unless_another_value_is_given() -> None:
    switches = Switches(Profile(micro_batch="auto", deterministic=True))
    switches.applied("deterministic", verified=True)
    switches.applied("micro_batch", 32)
    switches.applied("memory_fraction")
    report = switches.report()
    assert (report["deterministic"].applied, report["deterministic"].verified) == ("true", True)
    assert (report["micro_batch"].requested, report["micro_batch"].applied) == ("auto", "32")
    assert report["micro_batch"].verified is None
    assert report["memory_fraction"].applied == "null"


def test_what_fell_back_is_listed_with_both_values_and_the_reason() -> None:
    switches = Switches(Profile(non_blocking=True))
    switches.applied("deterministic")
    switches.fell_back("non_blocking", value=False, why="nothing to wait for")
    assert switches.fallbacks == ("non_blocking true: using false: nothing to wait for",)
    assert switches.report()["non_blocking"].verified


def test_falling_back_to_what_was_asked_for_is_no_fallback() -> None:
    switches = Switches(Profile(placement="host"))
    switches.fell_back("placement", "host", "a CPU")
    assert switches.fallbacks == ()


def test_a_long_reason_is_cut_to_what_the_contract_allows() -> None:
    switches = Switches(Profile())
    switches.fell_back("compile", "off", "x" * 5000)
    switches.applied("placement", note="y" * 5000)
    report = switches.report()
    assert (len(report["compile"].note), len(report["placement"].note)) == (1000, 1000)


def test_a_training_says_which_switches_it_has_no_use_for(job: JobDir) -> None:
    training = make(job)
    training.rehearse()
    report = training.effective().switches
    unused = {name for name, switch in report.items() if switch.applied is None}
    assert {"encode_once", "graph_cache", "stream_buffer", "loader_prefetch"} <= unused
    assert not {"deterministic", "optimizer", "attention", "micro_batch", "placement", "compile"} & unused
    assert report["optimizer"].verified
