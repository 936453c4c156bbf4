"""A batch depends on seed and step alone: not on what is kept, shared, resident, or in which process."""
# ruff: noqa: N806 - tensors carry their shape

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.workloads.imu_stream.windows import Windows
from tests.unit.jobs.workloads.imu import WASTEFUL, WINDOW, streamed, write_recordings


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("imu") / "it's; echo")


def source(directory: Path, profile: dict[str, object] | None = None, **changes: object) -> Windows:
    return streamed(directory, profile, **changes).source


def same(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def test_batches_have_one_window_per_row(recordings: Path) -> None:
    for batch in (source(recordings).batch(0), source(recordings).held_out(0)):
        assert batch["imu"].shape == (12, WINDOW, 6)
        assert batch["pose"].shape == (12, WINDOW, 9)
        assert {tensor.dtype for tensor in batch.values()} == {torch.float32}


def test_a_batch_does_not_depend_on_what_was_asked_before(recordings: Path) -> None:
    used = source(recordings)
    for step in (5, 3, 4):
        used.batch(step)
        used.held_out(step)
    torch.rand(3)
    assert same(used.batch(2), source(recordings).batch(2))
    assert same(used.held_out(1), source(recordings).held_out(1))
    assert not same(used.batch(2), used.batch(4))


def test_a_pickled_source_carries_no_recording(recordings: Path) -> None:
    used = source(recordings)
    used.batch(0)
    copy = pickle.loads(pickle.dumps(used))  # noqa: S301 - our own bytes
    assert (len(copy.frames), len(copy.poses)) == (0, 0)
    assert same(copy.batch(1), used.batch(1))


@pytest.mark.parametrize(
    "switched",
    [
        {},
        {"conversion": "once"},
        {"shared_targets": True},
        {"conversion": "once", "stream_buffer": 4},
        {"conversion": "once", "shared_targets": True, "stream_buffer": "auto"},
        {"conversion": "once", "shared_targets": True, "streaming": False},
    ],
)
@pytest.mark.parametrize("stride", [None, 7])
def test_every_switch_gives_the_same_bits(
    recordings: Path, switched: dict[str, object], stride: int | None
) -> None:
    plain = source(recordings, stride=stride)
    wasteful = source(recordings, WASTEFUL | switched, stride=stride)
    for number in range(4):
        assert same(wasteful.batch(number), plain.batch(number))
        assert same(wasteful.held_out(number), plain.held_out(number))


def test_a_resident_source_gives_the_same_bits(recordings: Path) -> None:
    streamed_ = source(recordings, stride=7)
    resident = streamed_.on(torch.device("cpu"))
    for number in range(4):
        assert same(resident.batch(number), streamed_.batch(number))
        assert same(resident.held_out(number), streamed_.held_out(number))
    assert same(resident.on(torch.device("cpu")).batch(0), streamed_.batch(0))


def test_a_resident_source_takes_the_bytes_that_it_says(recordings: Path) -> None:
    streamed_ = source(recordings)
    resident = streamed_.on(torch.device("cpu"))
    assert resident.resident is not None
    assert resident.resident_bytes == resident.resident.inputs_NC.nbytes + resident.resident.targets.nbytes
    assert streamed_.resident_bytes == resident.resident_bytes
    assert source(recordings, WASTEFUL).resident_bytes is None


def test_hidden_channels_are_zero_and_visible_ones_are_noisy(recordings: Path) -> None:
    combos = ((0, 1, 2), (5,))
    clean = source(recordings, combos=combos, noise=0.0)
    noisy = source(recordings, combos=combos, noise=0.5)
    combo_B = torch.from_numpy(clean.train.rows(0, 12)[:, 2])
    for row, combo in enumerate(combo_B.tolist()):
        hidden = [channel for channel in range(6) if channel not in combos[combo]]
        for batch in (clean.batch(0), noisy.batch(0)):
            assert batch["imu"][row][:, hidden].eq(0).all()
            assert batch["imu"][row][:, list(combos[combo])].ne(0).all()
    added = (noisy.batch(0)["imu"] - clean.batch(0)["imu"])[clean.batch(0)["imu"] != 0]
    assert added.std() == pytest.approx(0.5, rel=0.1)


def test_targets_do_not_depend_on_the_combo_or_the_noise(recordings: Path) -> None:
    one, other = source(recordings), source(recordings, combos=((0,),) * 6, noise=3.0)
    assert one.batch(0)["pose"].equal(other.batch(0)["pose"])
    assert not one.batch(0)["imu"].equal(other.batch(0)["imu"])


def test_signal_and_targets_are_normalised_over_training_windows(recordings: Path) -> None:
    windows = source(recordings, batch_size=300, combos=((0, 1, 2, 3, 4, 5),), noise=0.0, shards=1)
    (size,) = windows.train.shard_rows
    for values in {name: tensor[:size] for name, tensor in windows.batch(0).items()}.values():
        torch.testing.assert_close(values.mean((0, 1)), torch.zeros(values.shape[2]), atol=1e-4, rtol=0)
        torch.testing.assert_close(values.std((0, 1)), torch.ones(values.shape[2]), atol=1e-2, rtol=0)


def test_a_window_is_the_part_of_the_recording_that_it_names(recordings: Path) -> None:
    windows = source(recordings, stride=7)
    imu_BT6, _ = windows.assemble(np.array([[1, 3, 0], [0, 2, 1]]))
    for part_T6, (number, start) in zip(imu_BT6, ((1, 21), (0, 14)), strict=True):
        whole_N6 = np.load(recordings / f"recordings/{number}.npy")
        np.testing.assert_array_equal(part_T6, whole_N6[start : start + WINDOW])


def test_a_recording_that_is_kept_is_opened_once_in_a_pass(recordings: Path) -> None:
    windows = source(recordings, {"stream_buffer": 4}, shards=1)
    before = windows.opened
    windows.batch(0)
    windows.batch(1)
    assert windows.opened - before <= 4
    assert windows.opened == windows.frames.made


def test_no_more_is_kept_than_the_buffer_holds(recordings: Path) -> None:
    windows = source(recordings, {"stream_buffer": 2})
    for step in range(6):
        windows.batch(step)
        assert max(len(windows.frames), len(windows.poses)) <= 2


def test_of_two_processes_each_opens_half_of_the_recordings(recordings: Path) -> None:
    windows = source(recordings)
    seen: list[set[int]] = [set(), set()]
    for step in range(20):
        seen[step % 2] |= set(windows.train.rows(step, 12)[:, 0].tolist())
    assert seen == [{0, 2}, {1, 3}]


def test_the_scan_finds_what_became_no_number(tmp_path: Path) -> None:
    directory = write_recordings(tmp_path / "imu")
    windows = source(directory, WASTEFUL)
    bad_T6 = np.full((WINDOW, 6), np.nan, np.float32)
    with pytest.raises(InvalidSpec, match=r"0\.npy: a window with values that are not numbers"):
        windows._scanned_poses(0, bad_T6)


def test_a_mode_that_does_not_stream_opens_each_file_once_and_shuffles_all_rows(tmp_path: Path) -> None:
    """As docs/reference/workloads/imu_stream.md says it."""
    whole = {"shards": 1, "shuffle_block": 1000, "batch_size": 6}
    source = streamed(write_recordings(tmp_path), {"stream_buffer": "auto"}, **whole).source
    rows = source.train.shard_rows[0]
    before, opened = source.opened, set()
    passes = [source.train.rows(number, rows).tolist() for number in range(2)]
    for number in range(2 * rows // 6):
        source.batch(number)
        opened.add(source.opened - before)
    train = {recording for recording, _, _ in passes[0]}
    assert max(opened) <= len(train)
    assert sorted(passes[0]) == sorted(passes[1])
    assert passes[0] != passes[1]
    switches = [recording for recording, _, _ in passes[0]]
    assert switches != sorted(switches)  # rows of all recordings are mixed
