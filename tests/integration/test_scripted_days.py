"""Days with ten users on stand-in hosts, through the real daemon with real processes, in accelerated time.

After every event: no device is lent twice and none leaks, quotas hold, every wait is explained, and
nobody who has waited past the bound of the class is passed over.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.queue.plan import Start, plan
from runner.core.queue.rules import Quota, Quotas
from runner.core.queue.snapshot import DeviceState, Snapshot
from runner.ports import Device
from tests.fakes import day_rules
from tests.fakes.day_machine import Machine
from tests.fakes.day_rules import Holding
from tests.fakes.day_script import KINDS, Kind
from tests.fakes.sites import NOW_S, gpus, host, running, waiting

SEED = int(os.environ.get("RUNNER_DAY_SEED", "1"))
PATIENCE_S = 60.0

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

MISTAKES = ("turn_failed", "message_failed", "work_failed", "look_failed", "inventory.failed", "Traceback")
"""Words in the log of a daemon that has made a mistake."""


@pytest.fixture
def place() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="runner-day-"))
    root.chmod(0o755)  # others run in it
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_day_with_ten_users_breaks_no_rule(place: Path, kind: Kind) -> None:
    machine = Machine(place, kind, SEED)
    machine.live(PATIENCE_S)
    log, counts = (place / "daemon.log").read_text(), machine.counts()
    print(f"seed {SEED}, {kind.name}: {machine.hours():.1f} h, {json.dumps(counts, sort_keys=True)}")  # noqa: T201
    broken = place / "broken"
    assert not machine.broken, machine.broken[:9]
    assert not broken.exists(), broken.read_text()[:4000]
    assert not [line for line in log.splitlines() if any(word in line for word in MISTAKES)], log[-4000:]
    assert (place / "over").exists(), log[-4000:]
    assert machine.killed == 2
    assert machine.most >= 4, "the day was too quiet to tell anything"
    assert counts["starts"] >= 40
    assert counts["overdue"] > 0, "nobody was overdue: nothing was shown about that"
    seen = {state for state in DeviceState if f"saw {state}" in counts}
    assert seen >= {DeviceState.FREE, DeviceState.LENT}
    assert len(seen) >= 4, seen  # on a busy machine one or another is over between two ticks


def test_the_rules_of_the_days_can_be_broken() -> None:
    """Each of them fails on a plan, or a holding, that breaks it."""
    whole = Device("GPU-a", "nvidia", "H100")
    first, second = (Holding(job_id, "ada", "lab", ("GPU-a",)) for job_id in "12")
    with pytest.raises(AssertionError, match="lent to jobs"):
        day_rules.lent_once([first, second], [whole])
    parts = [replace(each, device_bytes=9) for each in (first, second)]
    with pytest.raises(AssertionError, match="bytes lent"):
        day_rules.lent_once(parts, [replace(whole, kind="shared", memory_bytes=10)])
    with pytest.raises(AssertionError, match="group lab: 2 devices of 1"):
        day_rules.within_quotas([first, second], Quotas(groups={"lab": Quota(devices=1)}))
    with pytest.raises(AssertionError, match="sweep s: 2 jobs"):
        day_rules.within_quotas([replace(each, sweep=("s", 1)) for each in (first, second)], Quotas())


def test_the_rule_about_overdue_jobs_can_be_broken() -> None:
    late = waiting("late", gpus(2, linked=True), age_s=1e6)
    early = waiting("early", gpus(1), owner="eve", hours=9)
    site = Snapshot(NOW_S, (host(2),), (late, early), (running("r", ["h-0"], hours=1),))
    good = plan(site)
    assert not good.starts
    greedy = replace(good, starts=(Start("early", "h", ("h-1",)),))
    with pytest.raises(AssertionError, match="overdue job late: 28800"):
        day_rules.nobody_is_passed_over(site, greedy)
    with pytest.raises(AssertionError, match="gets h-0 too"):
        day_rules.only_what_is_free_is_lent(site, replace(good, starts=(Start("early", "h", ("h-0",)),)))
    idle = replace(site, running=())
    with pytest.raises(AssertionError, match="could start"):
        day_rules.nobody_is_passed_over(idle, greedy)
