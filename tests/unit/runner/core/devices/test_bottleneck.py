from collections.abc import Iterable

import pytest

from runner.core.devices.bottleneck import (
    IdleAlarm,
    LoaderSetup,
    SampleWindow,
    UtilizationSample,
    alarm_kind,
    idle_alarm,
)

WINDOW_S = 600.0


def spell(
    util: float | None = 0.2,
    wait: float | None = 0.83,
    *,
    phase: str = "train",
    looks: Iterable[int] = range(121),
) -> SampleWindow:
    """Return ten minutes of looks that all saw the same."""
    found = SampleWindow()
    for number in looks:
        found = found.add(UtilizationSample(5.0 * number, phase, util, wait), WINDOW_S)
    return found


def said(
    found: SampleWindow, setup: LoaderSetup | None = None, below: float = 0.7, *, on_devices: bool = True
) -> IdleAlarm | None:
    return idle_alarm(found, setup or LoaderSetup(), below, WINDOW_S, on_devices=on_devices)


def test_an_idle_device_whose_job_waits_for_data_is_input_bound() -> None:
    assert said(spell(), LoaderSetup(workers=0)) == IdleAlarm(
        "input",
        "input-bound: 83% of step time waits for data; loader workers 0 "
        "(devices busy 20% of the last 10m, alarm below 70%)",
    )


@pytest.mark.parametrize(
    ("wait", "setup", "kind", "why"),
    [
        (0.9, LoaderSetup(), "input", "input-bound: 90% of step time waits for data"),
        (0.1, LoaderSetup({"transfer": 0.4, "optimizer": 0.35}), "transfer",
         "transfer-bound: 40% of step time copies batches to the device"),
        (0.1, LoaderSetup({"optimizer": 0.5}), "optimizer",
         "optimizer-bound: 50% of step time updates weights"),
        (0.0, LoaderSetup({"forward": 0.9}, micro_batch=4, compiled=False), "host",
         "host-bound: data are there, and kernels too short or too few; micro-batch 4; not compiled"),
        (0.0, LoaderSetup(compiled=True), "host",
         "host-bound: data are there, and kernels too short or too few"),
        (None, LoaderSetup(), "unknown", "it does not say where the time of its steps goes"),
        (None, LoaderSetup({"transfer": 0.6}), "transfer",
         "transfer-bound: 60% of step time copies batches to the device"),
    ],
)  # fmt: skip
def test_the_bottleneck_is_named(wait: float | None, setup: LoaderSetup, kind: str, why: str) -> None:
    found = said(spell(wait=wait), setup)
    assert found is not None
    assert (found.kind, found.text.partition(" (")[0]) == (kind, why)
    assert alarm_kind(f"attempt 1: {found.text}") == kind


def test_an_alarm_about_something_else_is_of_no_kind() -> None:
    assert alarm_kind("pid 4121 of uid 1007 (python) uses GPU-3") is None


def test_a_busy_device_is_no_alarm_whatever_it_waits_for() -> None:
    assert said(spell(util=0.7)) is None


def test_a_device_of_which_nothing_is_known_is_no_alarm() -> None:
    assert said(spell(util=None)) is None


def test_what_was_seen_for_less_than_the_window_is_no_alarm() -> None:
    assert said(spell(looks=range(120))) is None
    assert said(SampleWindow()) is None


def mute(util: float | None, *, then: UtilizationSample | None = None) -> SampleWindow:
    found = SampleWindow()
    for number in range(121):
        found = found.add(UtilizationSample(5.0 * number, None, util, silent=True), WINDOW_S)
    return found if then is None else found.add(then, WINDOW_S)


def test_a_device_that_idles_under_a_program_which_says_nothing_is_an_alarm() -> None:
    assert said(mute(0.0)) == IdleAlarm(
        "mute",
        "it says nothing of itself, and its devices idle (devices busy 0% of the last 10m, alarm below 1%)",
    )
    assert alarm_kind("attempt 1: it says nothing of itself, and its devices idle (devices") == "mute"


def test_a_program_that_says_nothing_is_let_be_as_long_as_it_does_anything() -> None:
    assert said(mute(0.02)) is None
    assert said(mute(None)) is None
    assert said(mute(0.0), on_devices=False) is None
    assert said(mute(0.0), below=0.0) is None


def test_what_was_seen_before_the_first_word_does_not_count_afterwards() -> None:
    assert len(mute(0.0, then=UtilizationSample(605.0, "train", 0.2)).samples) == 1
    assert (
        mute(0.0, then=UtilizationSample(605.0, None, 0.0)) == SampleWindow()
    )  # it has spoken, and is silent now


def test_a_job_without_devices_is_judged_by_its_waiting_alone() -> None:
    found = said(spell(util=None, wait=0.83), on_devices=False)
    assert found == IdleAlarm(
        "input",
        "input-bound: 83% of step time waits for data (steps busy 17% of the last 10m, alarm below 70%)",
    )
    assert said(spell(util=None, wait=0.2), on_devices=False) is None
    assert said(spell(util=None, wait=None), on_devices=False) is None


def test_a_low_alarm_names_the_waiting_even_where_it_is_little() -> None:
    found = said(spell(util=None, wait=0.15), below=0.9, on_devices=False)
    assert found is not None
    assert "input-bound: 15%" in found.text


@pytest.mark.parametrize("phase", ["init", "data", "compile", "drain", None])
def test_a_phase_that_takes_as_long_as_it_takes_begins_a_spell_anew(phase: str | None) -> None:
    assert spell().add(UtilizationSample(601.0, phase), WINDOW_S) == SampleWindow()


def test_evaluating_and_saving_count_as_what_they_are() -> None:
    assert said(spell(phase="eval")) is not None
    assert said(spell(phase="save")) is not None


def test_only_the_window_is_remembered() -> None:
    late = spell(util=0.1).add(UtilizationSample(10_000.0, "train", 0.9), WINDOW_S)
    assert len(late.samples) == 2  # the one before it says since when
    assert len(spell().samples) == 121


def test_a_mean_of_less_than_half_of_the_looks_says_nothing() -> None:
    found = SampleWindow(
        tuple(UtilizationSample(float(n), "train", 0.5 if n < 2 else None) for n in range(5))
    )
    assert found.util is None
    assert SampleWindow(found.samples[:4]).util == 0.5
