"""The pages about the queue, held against what the code does."""

import re
from dataclasses import replace
from pathlib import Path

from runner.core.scheduler.config import DAY_S, DEFAULT_CLASSES, SchedulerConfig
from runner.core.scheduler.snapshot import GIB, DeviceState, ResourceRequest
from runner.services.simulation.trace import FIELDS
from tests.fakes.host.directories import devices, host, out, planned, running, waiting

PAGES = Path(__file__).parents[5] / "docs/explanation"
TEXT = "\n".join(
    (PAGES / f"{name}.md").read_text(encoding="utf-8")
    for name in ("scheduling", "backfill", "quotas", "simulation")
)


def test_every_field_of_a_trace_is_explained() -> None:
    section = TEXT[TEXT.index("A trace is CSV") : TEXT.index("| answer |")]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(FIELDS)
    required = {name for row in rows if "| required |" in row for name in re.findall(r"`(\w+)`", row)}
    assert required == {name for name, field in FIELDS.items() if field.required}


def test_bounds_and_weights_of_classes_are_the_real_ones() -> None:
    for each in DEFAULT_CLASSES:
        assert re.search(rf"`{each.name}` {each.starvation_limit_s / DAY_S:g} days?\b", TEXT)
        assert f"`{each.name}` {each.weight:g}" in TEXT


def test_numbers_of_the_rules_are_the_real_ones() -> None:
    rules = SchedulerConfig()
    assert f"half-life *h* ({rules.half_life_s / DAY_S:g} days)" in TEXT
    assert f"counts as {rules.cpu_weight:g} devices" in TEXT
    assert f"has a reservation, up to {rules.reservations};" in TEXT
    assert f"At most {rules.overdue_per_owner} jobs per owner can be overdue at once" in TEXT
    assert f"the hurdle is {rules.preemption.min_gain:g}" in TEXT
    assert f"younger than {rules.preemption.min_runtime_s / 60:g} minutes" in TEXT


def test_the_example_of_a_reason_is_a_real_one() -> None:
    reason = "a foreign process (pid 4121, uid 1007, python)"
    own = (*devices(3), out(replace(devices(4)[3]), DeviceState.FOREIGN, reason))
    needs = ResourceRequest(1, GIB, 2, device_bytes=40 * GIB, linked=True)
    queue = [waiting("first", replace(needs, device_bytes=0), age_s=99), waiting("1", needs)]
    busy = [running("r", ["h-0", "h-1"], hours=2)]
    said = planned(queue, [host(own=own)], busy).pending_reasons["1"].why
    assert said in TEXT.replace("\n", " ")
