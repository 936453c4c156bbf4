"""Batches of any loader and from any place change the time and nothing else."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from jobs.contract import Profile
from jobs.training import batches
from jobs.training.batches import Batch
from jobs.training.device import Device
from jobs.training.feed import Feed
from jobs.training.switches import Switches

CPU = Device(torch.device("cpu"), "a CPU", 1)
GPU = Device(torch.device("cuda", 0), "a card", 1)


@dataclass
class Numbers:
    """A source whose batches say which step they are for, and that counts how many were made."""

    resident_bytes: int | None = 300
    made: list[int] = field(default_factory=list)
    moved_to: torch.device | None = None

    def on(self, device: torch.device) -> "Numbers":
        return Numbers(self.resident_bytes, self.made, device)

    def batch(self, step: int) -> Batch:
        self.made.append(step)
        return {"x": torch.full((2,), step)}

    def held_out(self, index: int) -> Batch:
        return {"x": torch.full((2,), 100 + index)}


def feed(source: Numbers, device: Device = CPU, steps: int = 4, **profile: object) -> tuple[Feed, Switches]:
    switches = Switches(Profile.model_validate(profile))
    return Feed(source, switches, device, steps), switches


def values(batch: Batch) -> list[int]:
    return batch["x"].tolist()


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that says how many bytes of the card are free."""

    def say(free: int) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 10 * free))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)

    return say


# --- Placement


@pytest.mark.parametrize("wanted", ["pinned", "device"])
def test_on_a_cpu_everything_waits_on_the_host(wanted: str) -> None:
    source = Numbers()
    made, switches = feed(source, placement=wanted, non_blocking=True)
    assert made.source is source
    report = switches.report()
    assert (report["placement"].requested, report["placement"].applied) == (wanted, "host")
    assert report["non_blocking"].applied == "false"
    assert len(switches.fallbacks) == 2


def test_a_data_set_that_fits_moves_to_the_device(free: Callable[[int], None]) -> None:
    free(1000)
    made, switches = feed(Numbers(300), GPU, placement="device")
    assert isinstance(made.source, Numbers)
    assert made.source.moved_to == GPU.torch_device
    assert switches.report()["placement"].note.startswith("300 bytes on cuda:0 in ")
    assert switches.fallbacks == ()


def test_the_move_of_a_data_set_is_waited_for_once(
    free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(1000)
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    made, _ = feed(Numbers(300), GPU, placement="device")
    for step in range(3):
        made.take(step)
    assert waited == [GPU.torch_device]


@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_copy_to_a_card_is_waited_for_only_if_it_should_be(
    monkeypatch: pytest.MonkeyPatch, *, non_blocking: bool
) -> None:
    waits: list[bool] = []

    def to(batch: Batch, _device: torch.device, *, non_blocking: bool) -> Batch:
        waits.append(not non_blocking)
        return batch

    monkeypatch.setattr(batches, "to", to)
    made, switches = feed(Numbers(), GPU, placement="host", non_blocking=non_blocking)
    made.to_device(made.source.batch(0))
    assert waits == [not non_blocking]
    assert switches.report()["non_blocking"].applied == str(non_blocking).lower()


@dataclass
class KeptNumbers(Numbers):
    """A source whose batches are made once."""

    resident_batches: int = 12

    def on(self, device: torch.device) -> "KeptNumbers":
        return KeptNumbers(self.resident_bytes, self.made, device)


def test_kept_batches_are_counted_where_they_lie(
    free: Callable[[int], None], capfd: pytest.CaptureFixture[str]
) -> None:
    free(1000)
    _, on_device = feed(KeptNumbers(), GPU, placement="device")
    note = on_device.report()["placement"].note
    assert re.fullmatch(r"12 batches, 300 bytes on cuda:0 in \d+\.\d\d s", note)
    assert f"placement: {note}; the host keeps no copy" in capfd.readouterr().out
    _, on_host = feed(KeptNumbers(), placement="host")
    assert on_host.report()["placement"].note == "12 batches, 300 bytes in memory"
    _, others = feed(Numbers(), placement="host")
    assert not others.report()["placement"].note


def test_a_data_set_that_is_too_large_waits_in_pinned_memory(
    free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(999)
    pinned: list[Batch] = []

    def pin(batch: Batch) -> Batch:
        pinned.append(batch)
        return batch

    monkeypatch.setattr(batches, "pin", pin)
    made, switches = feed(Numbers(300), GPU, placement="device")
    assert "300 bytes are more than 30% of the 999 that are free" in switches.fallbacks[0]
    assert switches.report()["placement"].applied == "pinned"
    made.take(0)
    assert len(pinned) == 1


def test_a_stream_cannot_live_on_the_device(free: Callable[[int], None]) -> None:
    free(10**12)
    _, switches = feed(Numbers(None), GPU, placement="device")
    assert switches.report()["placement"].applied == "host"
    assert len(switches.fallbacks) == 1


@pytest.mark.parametrize("placement", ["host", "pinned"])
def test_a_placement_that_a_card_has_is_in_force(placement: str) -> None:
    _, switches = feed(Numbers(), GPU, placement=placement, non_blocking=True)
    assert switches.report()["placement"].verified
    assert switches.fallbacks == ()


# --- Handing out


def test_the_next_batch_is_made_ahead_once_and_only_while_there_is_a_next_step() -> None:
    source = Numbers()
    made, _ = feed(source, GPU, steps=3, non_blocking=True)
    for step in range(3):
        assert values(made.take(step)) == [step, step]
        made.look_ahead(step + 1)
    assert source.made == [0, 1, 2]


def test_a_batch_made_ahead_for_another_step_is_not_used() -> None:
    made, _ = feed(Numbers(), GPU, non_blocking=True)
    made.look_ahead(1)
    assert values(made.take(3)) == [3, 3]


def test_on_a_cpu_nothing_is_made_ahead() -> None:
    source = Numbers()
    made, _ = feed(source, non_blocking=True)
    made.look_ahead(1)
    assert source.made == []


def test_a_batch_is_copied_once_more_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"x": torch.zeros(2)}
    monkeypatch.setattr(Numbers, "batch", lambda *_: kept)
    plain, _ = feed(Numbers())
    copied, _ = feed(Numbers(), clone_batches=True)
    assert plain.take(0)["x"] is kept["x"]
    assert copied.take(0)["x"] is not kept["x"]
    assert copied.take(0)["x"].equal(kept["x"])


@pytest.mark.parametrize(("transfer", "moves"), [("needed", 0), ("always", 1)])
def test_a_batch_that_is_there_already_is_moved_only_by_always(
    monkeypatch: pytest.MonkeyPatch, transfer: str, moves: int
) -> None:
    moved: list[Batch] = []

    def to(batch: Batch, _device: torch.device, *, non_blocking: bool) -> Batch:
        moved.append(batch)
        return batch if not non_blocking else {}

    monkeypatch.setattr(batches, "to", to)
    made, _ = feed(Numbers(), transfer=transfer)
    assert values(made.to_device(made.take(1))) == [1, 1]
    assert len(moved) == moves
