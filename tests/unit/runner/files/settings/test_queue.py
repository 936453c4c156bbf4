"""The settings of the queue: closed, with reasons, and the same defaults as the rules."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.core.scheduler.config import DEFAULT_CLASSES, Quota, SchedulerConfig, SchedulingOrder
from runner.core.scheduler.snapshot import Maintenance
from runner.files.settings.model import Settings, load_settings
from runner.files.settings.queue import QueueSettings

WHEN = datetime(2030, 7, 1, 12, tzinfo=UTC)


def read(tmp_path: Path, text: str) -> QueueSettings:
    path = tmp_path / "settings.yaml"
    path.write_text(f"queue: {text}\n")
    return load_settings(path).queue


def test_the_defaults_are_those_of_the_rules() -> None:
    queue = Settings().queue
    assert queue.rules() == SchedulerConfig(order=SchedulingOrder.ATTAINED)
    assert queue.windows() == ()


def test_everything_that_is_said_reaches_the_rules(tmp_path: Path) -> None:
    queue = read(tmp_path, """{
        order: fifo, backfill: false, half_life: 2d, cpu_weight: 0.1, unknown: 6h, overdue_per_owner: 2,
        reservations: 3, user_shares: {ada: 2}, group_shares: {vision: 0}, user_quota: {devices: 4},
        group_quota: {jobs: 9}, user_quotas: {ada: {devices: 0, queued: 5}},
        group_quotas: {vision: {jobs: 1}},
        classes: {normal: {rank: 1}, night: {rank: 0, weight: 0.1, preemptible: true, bound: 30d}},
        preemption: {hurdle: 2, grace: 90s, young: 1h, most: 0}}""")  # fmt: skip
    rules = queue.rules()
    assert (rules.order, rules.backfill, rules.half_life_s) == (SchedulingOrder.FIFO, False, 2 * 86400)
    assert (rules.cpu_weight, rules.default_duration_s, rules.overdue_per_owner, rules.reservations) == (
        0.1,
        21600,
        2,
        3,
    )
    assert (rules.user_shares, rules.group_shares) == ({"ada": 2}, {"vision": 0})
    assert rules.quotas.for_user("ada") == Quota(0, None, 5)
    assert (rules.quotas.for_user("bob"), rules.quotas.for_group("x")) == (
        Quota(4, None, 10_000),
        Quota(jobs=9),
    )
    assert rules.quotas.for_group("vision") == Quota(jobs=1)
    classes = {each.name: (each.rank, each.starvation_limit_s) for each in rules.classes}
    assert (classes["normal"], classes["night"]) == ((1, 3 * 86400), (0, 30 * 86400))
    wanted = rules.preemption
    assert (wanted.min_gain, wanted.grace_s, wanted.min_runtime_s, wanted.max_preemptions) == (2, 90, 3600, 0)


def test_a_class_that_is_named_changes_that_one_and_leaves_the_others(tmp_path: Path) -> None:
    shipped = {each.name: each for each in DEFAULT_CLASSES}
    queue = read(
        tmp_path, "{classes: {night: {rank: 2}, interactive: {user_quota: {devices: 1}}, idle: null}}"
    )
    found = {each.name: each for each in queue.rules().classes}
    assert found.keys() == shipped.keys() - {"idle"} | {"night"}
    assert (found["normal"], found["urgent"]) == (shipped["normal"], shipped["urgent"])
    assert found["interactive"] == replace(shipped["interactive"], user_quota=Quota(devices=1, jobs=2))
    assert queue.shipped_classes() == ("normal", "urgent")
    assert read(tmp_path, "{}").shipped_classes() == ()


def test_a_maintenance_is_a_time_with_a_reason(tmp_path: Path) -> None:
    window = "{begin: 2030-01-31T18:00:00+01:00, end: 2030-01-31T19:00:00Z, devices: [GPU-3]}"
    begins = datetime(2030, 1, 31, 17, tzinfo=UTC).timestamp()
    assert read(tmp_path, f"{{maintenance: [{window}]}}").windows() == (
        Maintenance(begins, begins + 7200, "maintenance", devices=frozenset({"GPU-3"})),
    )


def test_the_time_is_told_by_the_clock_of_the_site(tmp_path: Path) -> None:
    assert read(tmp_path, "{timezone: Europe/Berlin}").utc_offset_s(WHEN) == 7200
    assert read(tmp_path, "{timezone: UTC}").utc_offset_s(WHEN) == 0
    assert abs(Settings().queue.utc_offset_s(WHEN)) <= 14 * 3600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{orders: fair}", 'queue.orders: unknown field; did you mean "order"?'),
        ("{order: best}", 'queue.order: must be one of "fair", "attained", "fifo", "priority" or "sjf"'),
        ("{classes: {normal: null}}", "queue.classes: normal must stay, as the class of jobs that name none"),
        ("{classes: {night: {}}}", "queue.classes.night.rank: is required"),
        (
            "{classes: {interactive: {rnak: 1}}}",
            "queue.classes.interactive.rnak: unknown field; did you mean",
        ),
        ("{half_life: 7}", 'queue.half_life: needs a unit: did you mean "7d", "7h", "7m" or "7s"?'),
        ("{switching: {levels: []}}", "queue.switching.levels: must have 1 to 8 limits, or be null"),
        ("{switching: {levels: [0s, 1h]}}", "queue.switching.levels: a limit must be more than 0s"),
        ("{switching: {levels: [1h, 1h]}}", "queue.switching.levels: must ascend; write for example [10m, "),
        ("{half_life: 0s}", "queue.half_life: must be at least 1m"),
        (
            "{user_quotas: {ada: {devices: -1}}}",
            "queue.user_quotas.ada.devices: must be a whole number of at least 0",
        ),
        ("{user_shares: {ada: -1}}", "queue.user_shares.ada: must be a number from 0 to"),
        (
            "{timezone: Mars/Base}",
            'queue.timezone: there is no time zone "Mars/Base"; write a name such as Europe/Berlin',
        ),
        (
            "{maintenance: [{begin: 2030-01-02T00:00:00Z, end: 2030-01-01T00:00:00Z}]}",
            "queue.maintenance[0]: ends before it begins; swap begin and end",
        ),
        (
            "{maintenance: [{begin: 2030-01-02T00:00:00, end: 2030-01-03T00:00:00Z}]}",
            'queue.maintenance[0].begin: needs an offset from UTC: did you mean "2030-01-02T00:00:00Z"?',
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_what_to_do(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, text)
    assert words in str(refused.value)


def test_people_whom_this_machine_does_not_know_are_named(tmp_path: Path) -> None:
    queue = read(tmp_path, """{user_quotas: {root: {jobs: 1}, adda: {jobs: 1}}, user_shares: {bbob: 2},
        group_quotas: {root: {jobs: 1}, labb: {jobs: 1}}}""")  # fmt: skip
    assert list(queue.strangers()) == [
        'queue.user_quotas: this machine has no user "adda"; the entry has no effect',
        'queue.user_shares: this machine has no user "bbob"; the entry has no effect',
        'queue.group_quotas: this machine has no group "labb"; the entry has no effect',
    ]


def test_a_number_is_whoever_has_no_name_here(tmp_path: Path) -> None:
    queue = read(tmp_path, """{user_quotas: {"20002": {jobs: 1}}, user_shares: {"20002": 2},
        group_quotas: {"20002": {jobs: 1}}, group_shares: {"20002": 2}}""")  # fmt: skip
    assert list(queue.strangers()) == []


@pytest.mark.parametrize("where", ["unknown", "half_life", "classes: {normal: {rank: 1, bound"])
def test_days_are_among_what_a_long_duration_without_a_unit_may_mean(tmp_path: Path, where: str) -> None:
    ends = "}" * (1 + where.count("{"))
    with pytest.raises(UsageError, match='needs a unit: did you mean "7d", "7h", "7m" or "7s"'):
        read(tmp_path, f"{{{where}: 7{ends}")
    with pytest.raises(UsageError, match="cannot be negative"):
        read(tmp_path, f"{{{where}: -7{ends}")
