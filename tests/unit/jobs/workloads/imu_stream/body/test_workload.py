"""The four networks: what they read, what is trained, how errors are counted, and what is kept."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from jobs.contract import Profile, Switch
from jobs.contract.plans.imu_stream import DEVICE_COMBOS, ImuStream
from jobs.data.skeleton import JOINTS, from_axis_angles, joint_positions, own_bones
from jobs.training.batches import Batch, split
from jobs.training.failures import InvalidSpec
from jobs.training.switches import Switches
from jobs.workloads.imu_stream.body.errors import Estimates, errors
from jobs.workloads.imu_stream.body.frames import CONTACTS, POSITIONS, TARGETS, VELOCITIES
from jobs.workloads.imu_stream.body.networks import MODULES, jerk, velocity_losses
from jobs.workloads.imu_stream.body.windows import BodyWindows
from jobs.workloads.imu_stream.body.workload import BodyPoses
from jobs.workloads.protocol import BuildContext, build
from tests.fakes.workloads.motions import sequences, write_amass, write_totalcapture
from tests.unit.jobs.workloads.bare_loop import assert_declared

WASTEFUL: dict[str, object] = {"conversion": "each_use", "shared_targets": False, "stream_buffer": 1}

SMALL: dict[str, object] = {
    "data": "synthetic-imu",
    "module": "joints",
    "synthetic_sequences": 9,
    "synthetic_frames": 50,
    "batch_size": 12,
    "window": 20,
    "hidden": 8,
    "shards": 2,
    "held_out": 0.34,
}


def plan(**changes: object) -> ImuStream:
    return ImuStream.model_validate(SMALL | changes)


def made(profile: Mapping[str, object] | None = None, **changes: object) -> BodyPoses:
    return report(profile, **changes)[0]


def report(
    profile: Mapping[str, object] | None = None, **changes: object
) -> tuple[BodyPoses, Mapping[str, Switch]]:
    switches = Switches(Profile.model_validate(profile or {}))
    workload: Any = build(plan(**changes), BuildContext(seed=3, switches=switches))
    assert isinstance(workload, BodyPoses)
    return workload, switches.report()


def equal(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


# --- The plan


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"sites": [0, 0, 2, 3, 4]}, r"\[0, 0, 2, 3, 4\] names a site twice"),
        ({"device_combos": [[1, 1]]}, r"\[1, 1\] names a site twice"),
        ({"device_combos": [[5]]}, r"site 5 of a combo is none of the sites \[0, 1, 2, 3, 4\]"),
        ({"device_combos": []}, "at least 1 item"),
        ({"module": None}, "synthetic-imu is a body in motion: set module as well"),
        ({"module": "mesh"}, "joints"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(fields: dict[str, object], fact: str) -> None:
    with pytest.raises(ValidationError, match=fact):
        plan(**fields)


def test_bodies_are_recorded_thirty_times_a_second_unless_the_plan_says_otherwise() -> None:
    assert plan().rate_hz == 30
    assert plan(rate_hz=60).rate_hz == 60
    assert ImuStream(data="x").rate_hz == 50
    assert ImuStream.model_validate_json(plan().model_dump_json()) == plan()


def test_the_json_of_a_single_sensor_is_that_of_earlier_versions() -> None:
    """Digests of revisions depend on it."""
    written = ImuStream(data="x").model_dump(mode="json")
    assert set(written) & {"module", "files", "sites", "device_combos", "synthetic_frames"} == set()


def test_there_are_twelve_combos_of_one_to_three_of_five_sites() -> None:
    assert len(DEVICE_COMBOS) == len(set(DEVICE_COMBOS)) == 12
    assert {len(combo) for combo in DEVICE_COMBOS} == {1, 2, 3}
    assert {site for combo in DEVICE_COMBOS for site in combo} == {0, 1, 2, 3, 4}


# --- Batches


def test_a_batch_has_sixty_inputs_of_which_a_combo_shows_some() -> None:
    workload = made(batch_size=60)
    batch = workload.source.batch(0)
    assert batch["imu"].shape == (60, 20, 60)
    assert batch["body"].shape == (60, 20, TARGETS) == (60, 20, 144 + 72 + 72 + 2)
    rows = workload.source.train.rows(0, 60)
    for row, (recording, window, combo) in enumerate(rows.tolist()):
        shown = {site for site in range(5) if batch["imu"][row, :, 15 + 9 * site :][:, :9].any()}
        assert shown == set(DEVICE_COMBOS[combo])
        assert shown == {site for site in range(5) if batch["imu"][row, :, 3 * site :][:, :3].any()}
        imu, body = workload.source.converted(recording)
        part = slice(20 * window, 20 * window + 20)
        assert batch["body"][row].equal(body[part])
        carrier = int(batch["carrier"][row])
        assert carrier in shown
        assert batch["imu"][row, :, 15 + 9 * carrier :][:, :9].equal(imu[part, 15 + 9 * carrier :][:, :9])


def test_other_sites_and_combos_can_be_chosen() -> None:
    workload = made(sites=[5, 0], device_combos=[[5], [0, 5]])
    batch = workload.source.batch(0)
    assert batch["imu"].shape == (12, 20, 24)
    assert set(batch["carrier"].tolist()) == {0}


@pytest.mark.parametrize(
    "profile",
    [
        WASTEFUL,
        {"conversion": "once", "shared_targets": False, "stream_buffer": 2},
        {"conversion": "each_use", "shared_targets": True, "stream_buffer": 2},
        {"stream_buffer": 1},
        {"streaming": False},
    ],
)
def test_no_switch_changes_a_batch(profile: dict[str, object]) -> None:
    plain, switched = made(), made(profile)
    for number in range(3):
        assert equal(plain.source.batch(number), switched.source.batch(number))
    assert equal(plain.source.held_out(1), switched.source.held_out(1))


def test_a_source_that_does_not_stream_has_converted_everything_before_the_first_step() -> None:
    workload, switches = report({"streaming": False})
    assert switches["streaming"].note.startswith("630,000 bytes, converted before the first step")
    assert switches["streaming"].verified
    assert (switches["stream_buffer"].applied, switches["stream_buffer"].verified) == ("0", True)
    assert workload.source.resident_bytes == 9 * 50 * (60 + TARGETS) * 4
    assert workload.train_items == made().train_items
    assert workload.source.on(torch.device("cpu")).batch(0)["imu"].equal(workload.source.batch(0)["imu"])


def test_what_is_made_for_each_use_cannot_be_loaded_ahead() -> None:
    workload, switches = report({**WASTEFUL, "streaming": False})
    assert (switches["streaming"].applied, switches["streaming"].verified) == ("true", True)
    assert isinstance(workload.source, BodyWindows)
    assert workload.source.resident_bytes is None


@pytest.mark.parametrize(("profile", "opened", "filtered"), [({}, 1, 1), (WASTEFUL, 2, 2)])
def test_the_waste_of_a_profile_is_counted(profile: dict[str, object], opened: int, filtered: int) -> None:
    workload, switches = report(profile)
    assert (workload.source.opened, workload.source.filtered) == (opened, filtered)
    assert switches["conversion"].verified
    assert switches["shared_targets"].verified


# --- Recordings


def test_a_folder_of_archives_is_trained_on_and_the_last_one_is_held_out(tmp_path: Path) -> None:
    workload = made(data=str(write_amass(tmp_path)))
    source = workload.source
    train = {source.recordings[each].group for each in source.train.recordings}
    held_out = {source.recordings[each].group for each in source.evaluated.recordings}
    assert (train, held_out) == ({"ACCAD.pt", "BMLmovi.pt"}, {"CMU.pt"})
    assert torch.allclose(workload.model.bones_J3, own_bones(), atol=1e-5)


def test_bones_are_those_of_the_recordings(tmp_path: Path) -> None:
    contents = sequences(0, 3)
    contents["joint"] = [2 * each for each in contents["joint"]]
    torch.save(contents, tmp_path / "tall.pt")
    assert torch.allclose(made(data=str(tmp_path)).model.bones_J3, 2 * own_bones(), atol=1e-5)


def test_a_folder_of_subjects_is_trained_on_without_joints(tmp_path: Path) -> None:
    workload = made(data=str(write_totalcapture(tmp_path)))
    assert {workload.source.recordings[each].group for each in workload.source.evaluated.recordings} == {"s3"}
    assert workload.model.bones_J3.equal(own_bones())


def test_tests_are_held_out_if_there_are_any(tmp_path: Path) -> None:
    folder = write_amass(tmp_path)
    torch.save(sequences(0, 2), folder / "eval" / "totalcapture_test.pt")
    source = made(data=str(folder)).source
    assert {source.recordings[each].path.name for each in source.evaluated.recordings} == {
        "totalcapture_test.pt"
    }
    assert len(source.train.recordings) == 9


def test_contacts_follow_from_slow_feet_if_they_are_not_recorded(tmp_path: Path) -> None:
    contents = sequences(0, 3)
    torch.save(contents, tmp_path / "a.pt")
    assert not made(data=str(tmp_path), shards=1).source.converted(0)[1][:, CONTACTS].any()
    torch.save({**contents, "contact": None}, tmp_path / "a.pt")
    contacts = made(data=str(tmp_path), shards=1).source.converted(0)[1][:, CONTACTS]
    assert set(contacts.unique().tolist()) == {0.0, 1.0}
    assert 0.2 < float(contacts.mean()) < 0.8


def test_velocities_are_those_of_the_root_and_of_the_joints_against_it() -> None:
    body = made().source.converted(0)[1]
    motion = made().source.reader.read(made().source.recordings[0])
    velocity = 2 * body[:, VELOCITIES].unflatten(1, (JOINTS, 3))
    assert torch.allclose(velocity[1:, 0], motion.translation_N3.diff(dim=0) * 30, atol=1e-3)
    positions = body[:, POSITIONS].unflatten(1, (JOINTS, 3))
    assert torch.allclose(velocity[1:, 1:], positions[:, 1:].diff(dim=0) * 30, atol=1e-3)


def test_fewer_sequences_than_shards_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="shards: 7 shards of 6 training recordings"):
        made(shards=7)


def test_other_data_have_another_signature(tmp_path: Path) -> None:
    write_amass(tmp_path)
    one, other = made(data=str(tmp_path)), made(data=str(tmp_path), files=["C*.pt"])
    assert one.signatures["model"] == other.signatures["model"]
    assert one.signatures["data"] != other.signatures["data"]
    assert made().signatures["data"] != made(synthetic_frames=51).signatures["data"]


# --- Networks


@pytest.mark.parametrize("module", MODULES)
def test_one_network_is_trained_and_the_others_stay(module: str) -> None:
    workload = made(module=module)
    groups = workload.parameter_groups()
    names = {name for group in groups for name, _ in group["params"]}
    assert names == {name for name, _ in workload.model.named_parameters() if name.startswith(module)}
    (workload.loss_sum(workload.source.batch(0)) / 12).backward()
    moved = {name for name, each in workload.model.named_parameters() if each.grad is not None}
    assert moved == names


def test_all_four_have_the_same_weights_so_that_one_job_can_begin_where_another_ended() -> None:
    assert len({made(module=module).signatures["model"] for module in MODULES}) == 1


@pytest.mark.parametrize("module", MODULES)
def test_losses_add_up_over_rows(module: str) -> None:
    workload = made(module=module, joint_noise=0.0)
    batch = workload.source.batch(0)
    with torch.no_grad():
        parts = [workload.loss_sum(part) for part in split(batch, 5)]
        assert float(torch.stack(parts).sum()) == pytest.approx(float(workload.loss_sum(batch)), rel=1e-5)


def test_joints_are_noisy_in_training_alone() -> None:
    workload = made(module="velocity")
    batch = workload.source.batch(0)
    with torch.no_grad():
        assert not workload.loss_sum(batch).equal(workload.loss_sum(batch))
        workload.model.eval()
        assert workload.loss_sum(batch).equal(workload.loss_sum(batch))


def test_a_drift_of_the_velocity_costs_more_than_a_trembling() -> None:
    drift = torch.full((1, 18, 72), 0.1)
    trembling = drift * torch.tensor([1.0, -1.0]).repeat(9)[None, :, None]
    assert float(velocity_losses(drift)) == pytest.approx(0.01 * (1 + 9 + 81))
    assert float(velocity_losses(trembling)) < float(velocity_losses(drift)) / 20
    assert float(velocity_losses(drift[:, :2])) == pytest.approx(0.01)


def test_a_steady_acceleration_has_no_jerk() -> None:
    time = torch.arange(10.0)[None, :, None]
    assert float(jerk(time**2)) == 0
    assert float(jerk(time**3)) == 6
    assert jerk(time[:, :3]).tolist() == [0.0]


# --- Errors


def estimates(degrees: float = 0.0, centimetres: float = 0.0, speed: float = 0.0) -> Estimates:
    turned = from_axis_angles(torch.tensor([0.0, 0.0, math.radians(degrees)])).repeat(2, 30, JOINTS, 1, 1)
    placed = joint_positions(torch.eye(3).repeat(2, 30, JOINTS, 1, 1), own_bones())
    placed = placed + torch.tensor([centimetres / 100, 0.0, 0.0])
    velocity = torch.zeros(2, 30, JOINTS, 3) + torch.tensor([0.0, 0.0, speed])
    return Estimates(placed, turned, placed, torch.full((2, 30, 2), 9.0), velocity.flatten(2))


def test_errors_have_the_units_of_their_names() -> None:
    true = Estimates(*(getattr(estimates(), name) for name in Estimates.__dataclass_fields__))
    found = errors(estimates(degrees=30, centimetres=3, speed=0.5), true, rate_hz=30.0)
    each = {name: float(total) / 2 for name, total in found.items()}
    assert each["joints_cm"] == pytest.approx(3, abs=1e-4)
    assert each["position_cm"] == pytest.approx(3, abs=1e-4)
    assert each["angle_deg"] == pytest.approx(30, abs=1e-3)
    assert each["sip_deg"] == pytest.approx(30, abs=1e-3)
    assert each["velocity_m_s"] == pytest.approx(0.5, abs=1e-5)
    assert each["distance_cm"] == pytest.approx(50, abs=1e-3)  # one second at 0.5 m/s
    assert each["jitter"] == pytest.approx(0, abs=0.01)
    assert each["contact_wrong"] == 0


def test_the_sip_error_is_that_of_hips_and_shoulders() -> None:
    true, said = estimates(), estimates()
    assert said.turned_BTJ33 is not None
    said.turned_BTJ33[:, :, [1, 2, 16, 17]] = from_axis_angles(torch.tensor([math.radians(12), 0.0, 0.0]))
    found = errors(said, true, rate_hz=30.0)
    assert float(found["sip_deg"]) / 2 == pytest.approx(12, abs=1e-3)
    assert float(found["angle_deg"]) / 2 == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize(
    ("module", "primary", "others"),
    [
        ("joints", "eval_joints_cm", set()),
        ("poser", "eval_angle_deg", {"eval_sip_deg", "eval_position_cm", "eval_jitter"}),
        ("foot_contact", "eval_contact_loss", {"eval_contact_wrong"}),
        ("velocity", "eval_velocity_m_s", {"eval_distance_cm"}),
    ],
)
def test_each_network_is_compared_with_a_figure_that_a_sensor_carries(
    module: str, primary: str, others: set[str]
) -> None:
    workload = made(module=module)
    workload.model.eval()
    with torch.inference_mode():
        sums = {name: float(each) for name, each in workload.score(workload.source.held_out(0)).items()}
    found = workload.judge(sums)
    assert_declared(workload, found)
    assert found.primary == primary
    assert set(found.metrics) == {primary, *others, "synthetic_data"}
    assert set(found.baseline) == {primary, *others}
    assert all(math.isfinite(value) for value in found.metrics.values())


def test_after_another_job_the_errors_are_those_of_all_networks_so_far() -> None:
    workload = made(module="velocity", init_from="job/foot-contact/best")
    workload.model.eval()
    with torch.inference_mode():
        batch = workload.source.held_out(0)
        sums = {name: float(each) for name, each in workload.score(batch).items()}
        joints = workload.model(batch["imu"], "joints")
        velocity = 2 * workload.model(torch.cat([batch["imu"], joints], -1), "velocity")
    found = workload.judge(sums)
    names = {"eval_joints_cm", "eval_angle_deg", "eval_contact_loss", "eval_velocity_m_s"}
    assert set(found.metrics) > names
    assert found.primary == "eval_velocity_m_s"
    apart = (velocity - 2 * batch["body"][..., VELOCITIES]).unflatten(2, (JOINTS, 3)).norm(dim=-1).mean()
    assert found.metrics["eval_velocity_m_s"] == pytest.approx(float(apart), rel=1e-4)


def test_a_figure_that_does_not_move_is_carried_by_its_sensor_without_error() -> None:
    """A statue that is turned: whichever sensor is visible says everything."""
    workload = made(module="poser")
    batch = workload.source.held_out(0)
    yaw = torch.linspace(0, 2, 20).repeat(12, 1)
    turns = from_axis_angles(torch.stack([0 * yaw, yaw, 0 * yaw], -1))
    statue = workload.statistics.rigid_SJ33[batch["carrier"]][:, None]
    placed = workload.statistics.rigid_positions_SJ3[batch["carrier"]][:, None, ..., None]
    batch["imu"][..., 15:] = turns.flatten(2).repeat(1, 1, 5)
    batch["body"][..., :144] = (turns[:, :, None] @ statue)[..., :2].transpose(-1, -2).flatten(2)
    batch["body"][..., POSITIONS] = (turns[:, :, None] @ placed).flatten(2)
    with torch.inference_mode():
        sums = {name: float(each) for name, each in workload.score(batch).items()}
    baseline = workload.judge(sums).baseline
    assert baseline["eval_angle_deg"] < 0.1
    assert baseline["eval_position_cm"] < 1e-3
