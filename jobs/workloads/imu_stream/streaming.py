"""Treatment of recordings by both tasks of ``imu_stream``: hold some out, keep some, say what was done.

A row of a batch is (recording, window, combo); ``jobs.workloads.imu_stream.order`` defines their order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jobs.contract.plans.imu_stream import ImuStream
from jobs.data.sequences import Recording
from jobs.training.failures import InvalidSpec
from jobs.training.report import say
from jobs.training.switches import Switches
from jobs.workloads.imu_stream.order import Order

Sides: TypeAlias = tuple[tuple[Recording, ...], tuple[Recording, ...]]


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """The caching options, which the corresponding switches of the profile set."""

    convert_once: bool = True
    share_targets: bool = True
    recordings: int = 1


def stride_of(plan: ImuStream) -> int:
    """Return the samples from one window to the next."""
    return plan.stride or plan.window


def windows_of(recording: Recording, plan: ImuStream) -> int:
    """Return the number of complete windows of a recording."""
    beyond_first = recording.samples - plan.window
    return 0 if beyond_first < 0 else beyond_first // stride_of(plan) + 1


def combos_of(plan: ImuStream) -> tuple[tuple[int, ...], ...]:
    """Return the combos: the channels of one sensor that are visible, or the sites of a body."""
    return plan.combos if plan.module is None else plan.device_combos


def orders_of(sides: Sides, plan: ImuStream, seed: int) -> tuple[tuple[Recording, ...], Order, Order]:
    """Return all recordings, and the orders of the rows to train on and of the held-out ones."""
    train, held_out = sides
    recordings = (*train, *held_out)
    places = range(len(recordings))
    return (
        recordings,
        order_of(recordings, places[: len(train)], plan, seed, train=True),
        order_of(recordings, places[len(train) :], plan, seed, train=False),
    )


def order_of(
    recordings: Sequence[Recording], places: range, plan: ImuStream, seed: int, *, train: bool
) -> Order:
    """Return the order of the rows of some recordings; held-out ones are one block of one shard."""
    windows = tuple(windows_of(recordings[place], plan) for place in places)
    combos = len(combos_of(plan))
    if train:
        return Order(tuple(places), windows, combos, plan.shards, plan.shuffle_block, seed, "train")
    return Order(tuple(places), windows, combos, 1, len(places), seed, "held-out")


def evenly(items: Any, count: int) -> list[Any]:  # noqa: ANN401 - any sequence
    """Return at most ``count`` of the items, evenly spaced, the first among them."""
    return (
        [items[place * len(items) // count] for place in range(count)] if len(items) > count else list(items)
    )


def long_enough(recordings: tuple[Recording, ...], plan: ImuStream) -> tuple[Recording, ...]:
    """Return the recordings that have a window, and say how many have none."""
    whole = tuple(each for each in recordings if windows_of(each, plan))
    if len(whole) < len(recordings):
        short = len(recordings) - len(whole)
        say(f"data: {short} recording(s) shorter than a window of {plan.window} frames left out")
    return whole


def split(recordings: tuple[Recording, ...], plan: ImuStream) -> Sides:
    """Return training and held-out recordings; no group is on both sides.

    Raises:
        InvalidSpec: there is one group, or there are fewer recordings than shards.
    """
    whole = long_enough(recordings, plan)
    groups = sorted({each.group for each in whole})
    held_out = set(groups[len(groups) - max(1, math.floor(len(groups) * plan.held_out)) :])
    if len(groups) <= len(held_out):
        raise InvalidSpec(
            f"data: {plan.data}: {len(groups)} group(s) with whole windows; two are needed, one to hold out"
        )
    train = tuple(each for each in whole if each.group not in held_out)
    require_shards(train, plan)
    return train, tuple(each for each in whole if each.group in held_out)


def require_shards(train: tuple[Recording, ...], plan: ImuStream) -> None:
    """Check that each shard has a recording.

    Raises:
        InvalidSpec: a shard has none.
    """
    if len(train) < plan.shards:
        raise InvalidSpec(f"shards: {plan.shards} shards of {len(train)} training recordings; use fewer")


def keeping(
    sides: Sides, signal_bytes: float, target_bytes: float, plan: ImuStream, switches: Switches
) -> CacheOptions:
    """Return the caching options of each process, and record the switches that determine them.

    The bytes are those of the signal and of the targets of a recording, on average.
    """
    profile = switches.profile
    once, shared = profile.conversion == "once", profile.shared_targets
    if not (once or shared):
        switches.fell_back(
            "stream_buffer", 0, "conversion each_use, targets not shared: there is nothing to keep"
        )
        return CacheOptions(convert_once=False, share_targets=False)
    recordings, processes = sum(map(len, sides)), max(1, profile.loader_workers)
    each_bytes = once * signal_bytes + shared * target_bytes
    if profile.stream_buffer == "auto":
        room = profile.stream_buffer_memory // processes
        kept = max(1, min(recordings, int(room / each_bytes)))
        switches.applied("stream_buffer_memory", verified=True)
    else:
        kept = profile.stream_buffer
    note = (
        f"{kept} of {recordings} sequences of {each_bytes:,.0f} bytes in each of {processes} process(es),"
        f" which use those of {_shards_seen(plan, processes)} of {plan.shards} shards"
    )
    switches.applied("stream_buffer", kept, verified=True, note=note)
    return CacheOptions(once, shared, kept)


def _shards_seen(plan: ImuStream, processes: int) -> int:
    """Return the number of shards that a process uses if it makes every n-th step."""
    return plan.shards // math.gcd(plan.shards, processes)


def summary(sides: Sides, plan: ImuStream) -> str:
    """Return a one-line summary of the data."""
    train, held_out = (
        f"{len(side)} recordings of {len({each.group for each in side})} groups,"
        f" {sum(windows_of(each, plan) for each in side):,} windows"
        for side in sides
    )
    return f"data: training on {train}; held out {held_out}; {len(combos_of(plan))} combos of each window"
