"""The workload: what is held out, what is kept, what is learnt, and what it is compared with."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from jobs.contract import Profile, Switch
from jobs.contract.plans.imu_stream import ImuStream
from jobs.training.batches import Batch, automatic_size, split
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import seed_all
from jobs.training.switches import Switches
from jobs.workloads.imu_stream.workload import StreamedPoses
from jobs.workloads.protocol import Evaluation
from tests.unit.jobs.workloads.bare_loop import assert_declared
from tests.unit.jobs.workloads.imu import WASTEFUL, build, plan, streamed, write_recordings


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    return write_recordings(tmp_path / "it's; echo")


# --- The plan


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"accelerometer": (0, 1, 3)}, "column 3 is named twice"),
        ({"combos": [(0, 0)]}, r"combo \[0, 0\] names a channel twice"),
        ({"combos": []}, "at least 1 item"),
        ({"combos": [()]}, "at least 1 item"),
        ({"combos": [(6,)]}, "less than or equal to 5"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(fields: dict[str, object], fact: str) -> None:
    with pytest.raises(ValidationError, match=fact):
        ImuStream.model_validate({"data": "x"} | fields)


@pytest.mark.parametrize(
    ("batch", "part"),
    [
        (1, 1),
        (16, 16),
        (33, 32),
        (64, 32),
        (100, 50),
        (1023, 511),
        (1024, 512),
        (4096, 512),
        (4104, 513),
        (8192, 1024),
    ],
)
def test_the_automatic_micro_batch_follows_the_formula(batch: int, part: int) -> None:
    assert automatic_size(batch) == part


# --- What is held out


def test_no_group_is_on_both_sides(recordings: Path) -> None:
    source = streamed(recordings).source
    train = {source.recordings[each].group for each in source.train.recordings}
    held_out = {source.recordings[each].group for each in source.evaluated.recordings}
    assert (train, held_out) == ({"a", "b"}, {"c"})


def test_at_least_one_group_is_held_out(recordings: Path) -> None:
    source = streamed(recordings, held_out=0.01).source
    assert {source.recordings[each].group for each in source.evaluated.recordings} == {"c"}


def test_all_groups_but_the_held_out_ones_count_as_items(recordings: Path) -> None:
    workload = streamed(recordings)
    assert workload.train_items == (4 + 3 + 4 + 3) * 6
    assert workload.steps_per_epoch == 7
    assert workload.items_per_step == workload.count(workload.source.batch(0)) == 12


def test_a_recording_shorter_than_a_window_is_left_out_and_said(
    recordings: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    workload = streamed(recordings, window=62)
    assert [each.samples for each in workload.source.recordings] == [95, 81, 64, 120]
    assert "2 recording(s) shorter than a window of 62 frames left out" in capfd.readouterr().out


def test_one_group_is_too_few(recordings: Path) -> None:
    (recordings / "index.csv").write_text("file,subject\nrecordings/0.npy,a\nrecordings/1.npy,a\n")
    with pytest.raises(InvalidSpec, match=r"1 group\(s\) with whole windows; two are needed"):
        streamed(recordings)


def test_no_recording_is_long_enough(recordings: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"0 group\(s\) with whole windows"):
        streamed(recordings, window=1000)


def test_more_shards_than_recordings_are_refused(recordings: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"shards: 5 shards of 4 training recordings; use fewer"):
        streamed(recordings, shards=5)


def test_a_value_that_is_not_finite_is_told_before_the_training(recordings: Path) -> None:
    signal = np.load(recordings / "recordings/3.npy")
    signal[7, 4] = np.nan
    np.save(recordings / "recordings/3.npy", signal)
    with pytest.raises(InvalidSpec, match=r"3\.npy: row 7, column 4: nan"):
        streamed(recordings)


# --- What is kept


def report(recordings: Path, **profile: object) -> Mapping[str, Switch]:
    switches = Switches(Profile.model_validate(profile))
    build(plan(recordings), switches)
    return switches.report()


def test_the_switches_say_what_a_window_really_cost(recordings: Path) -> None:
    once = report(recordings)
    assert (once["conversion"].note, once["conversion"].verified) == (
        "two uses of a window opened its file 1 time(s)",
        True,
    )
    wasteful = report(recordings, **WASTEFUL)
    assert (wasteful["conversion"].note, wasteful["conversion"].verified) == (
        "two uses of a window opened its file 2 time(s)",
        True,
    )
    assert wasteful["shared_targets"].note == "two uses of a window computed its targets 2 time(s)"
    assert wasteful["shared_targets"].verified


def test_a_buffer_with_nothing_to_keep_is_reported(recordings: Path) -> None:
    buffer = report(recordings, **WASTEFUL)["stream_buffer"]
    assert (buffer.requested, buffer.applied) == ("1", "0")
    assert "nothing to keep" in buffer.note


def test_an_automatic_buffer_holds_everything_where_there_is_room(recordings: Path) -> None:
    buffer = report(recordings)["stream_buffer"]
    assert (buffer.requested, buffer.applied, buffer.verified) == ("auto", "6", True)
    assert "in each of 1 process(es), which use those of 2 of 2 shards" in buffer.note


def test_an_automatic_buffer_is_measured_and_shared_between_processes(tmp_path: Path) -> None:
    directory = write_recordings(tmp_path / "imu")
    for number in range(6):
        np.save(directory / f"recordings/{number}.npy", np.ones((5000, 6), np.float32))
    each = 5000 * 6 * 4 + 250 * 20 * 9 * 4
    report_ = report(directory, stream_buffer_memory=4 * 1024**2, loader_workers=4)
    assert report_["stream_buffer"].applied == str(1024**2 // each) == "3"
    assert f"3 of 6 sequences of {each:,} bytes in each of 4 process(es)" in report_["stream_buffer"].note
    assert "use those of 1 of 2 shards" in report_["stream_buffer"].note


# --- What is learnt


def gradient(workload: StreamedPoses, micro_batch: int) -> torch.Tensor:
    batch = workload.source.batch(0)
    workload.model.zero_grad()
    for part in split(batch, micro_batch):
        (workload.loss_sum(part) / workload.count(batch)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in workload.model.parameters()])


def train(workload: StreamedPoses, steps: int) -> list[float]:
    """Return the loss of every step of the simplest loop there is."""
    optimizer = torch.optim.AdamW(workload.model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        seed_all(3, step)
        batch = workload.source.batch(step)
        optimizer.zero_grad()
        loss = workload.loss_sum(batch) / workload.count(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def evaluate(workload: StreamedPoses, batches: int = 2) -> Evaluation:
    sums: dict[str, float] = {}
    workload.model.eval()
    with torch.inference_mode():
        for index in range(batches):
            for name, value in workload.score(workload.source.held_out(index)).items():
                sums[name] = sums.get(name, 0.0) + float(value)
    found = workload.judge(sums)
    assert_declared(workload, found)
    return found


def test_the_loss_is_a_sum_over_windows(recordings: Path) -> None:
    whole = streamed(recordings)
    torch.testing.assert_close(gradient(whole, 5), gradient(whole, 12), rtol=1e-4, atol=1e-6)


def test_the_same_training_whatever_is_kept(recordings: Path) -> None:
    assert train(streamed(recordings, WASTEFUL), 4) == train(streamed(recordings), 4)


def test_the_weights_are_those_of_the_seed(recordings: Path) -> None:
    torch.rand(5)
    first, second = (torch.cat([p.flatten() for p in streamed(recordings).model.parameters()]) for _ in "ab")
    assert first.equal(second)


def test_what_is_learnt_beats_the_mean_and_the_first_frame(recordings: Path) -> None:
    workload = streamed(recordings, hidden=32, batch_size=32, combos=((0, 1, 2, 3, 4, 5),), noise=0.0)
    train(workload, 120)
    evaluation = evaluate(workload)
    assert evaluation.primary == "eval_mse"
    assert evaluation.metrics["eval_mse"] < evaluation.baseline["eval_mse"]


class Exact(torch.nn.Module):
    """Answers with what it was given as the right answer."""

    def __init__(self, pose: torch.Tensor, off_by: float) -> None:
        super().__init__()
        self.answer = pose + off_by

    def forward(self, _imu: torch.Tensor) -> torch.Tensor:
        return self.answer


def test_the_metric_is_the_mean_squared_error_in_standard_deviations(recordings: Path) -> None:
    workload = streamed(recordings)
    batch: Batch = workload.source.held_out(0)
    workload.model = Exact(batch["pose"], off_by=0.5)
    evaluation = evaluate(workload, batches=1)
    assert evaluation.metrics == pytest.approx(
        {"eval_mse": 0.25, "eval_mse_orientation": 0.25, "eval_mse_motion": 0.25}
    )
    pose = batch["pose"]
    mean, first = pose.square().mean().item(), (pose - pose[:, :1]).square().mean().item()
    assert evaluation.baseline["eval_mse"] == pytest.approx(min(mean, first))


def test_hidden_channels_do_not_reach_the_estimate(recordings: Path) -> None:
    workload = streamed(recordings, combos=((0, 1, 2),), noise=0.0)
    batch = workload.source.batch(0)
    changed = batch["imu"].clone()
    changed[:, :, 0] += 1
    assert not workload.model(changed).equal(workload.model(batch["imu"]))
    assert batch["imu"][:, :, 3:].eq(0).all()


@pytest.mark.parametrize(("bidirectional", "causal"), [(False, True), (True, False)])
def test_a_stream_does_not_see_its_future_unless_asked_to(
    recordings: Path, *, bidirectional: bool, causal: bool
) -> None:
    workload = streamed(recordings, bidirectional=bidirectional)
    imu = workload.source.batch(0)["imu"]
    changed = imu.clone()
    changed[:, 12:] += 1
    same = workload.model(changed)[:, :12].equal(workload.model(imu)[:, :12])
    assert same is causal


def test_matrices_alone_are_decayed(recordings: Path) -> None:
    workload = streamed(recordings)
    decayed, plain = workload.parameter_groups()
    assert {p.dim() for _, p in decayed["params"]} == {2}
    assert {p.dim() for _, p in plain["params"]} == {1}
    assert len(decayed["params"]) + len(plain["params"]) == len(list(workload.model.parameters()))


# --- What a checkpoint fits


@pytest.mark.parametrize(
    ("changes", "aspect"),
    [
        ({"hidden": 16}, "model"),
        ({"layers": 1}, "model"),
        ({"gravity": 9.81}, "data"),
        ({"held_out": 0.7}, "data"),
        ({"combos": ((0,),)}, "schedule"),
        ({"stride": 5}, "schedule"),
        ({"shards": 1}, "schedule"),
        ({"noise": 0.2}, "schedule"),
        ({"learning_rate": 0.5}, "schedule"),
    ],
)
def test_a_signature_tells_what_changed(recordings: Path, changes: dict[str, object], aspect: str) -> None:
    before, after = streamed(recordings).signatures, streamed(recordings, None, **changes).signatures
    assert {name for name in before if before[name] != after[name]} == {aspect}


def test_signatures_do_not_depend_on_the_profile_or_the_place(recordings: Path) -> None:
    before = streamed(recordings).signatures
    moved = recordings.rename(recordings.with_name("elsewhere"))
    assert streamed(moved, WASTEFUL).signatures == before
