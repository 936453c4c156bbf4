from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeAlias

import pytest
from pydantic import ValidationError

from runner.core.scheduler.snapshot import DependencyCondition, DeviceKind
from runner.files.job.cron import NAMED
from runner.files.job.queue import (
    DeviceRequest,
    JobDependency,
    Matrix,
    QueueFields,
    Schedule,
    find_contradictions,
    matrix_combinations,
)
from runner.files.types import GIB

Fields: TypeAlias = Mapping[str, object]


def complaints(
    queue: Fields | None = None,
    devices: Fields | None = None,
    *,
    gpus: int = 1,
    matrix: Matrix | None = None,
    schedule: Schedule | None = None,
) -> dict[str, str]:
    found = find_contradictions(
        gpus=gpus,
        queueing=QueueFields.model_validate(queue or {}),
        devices=DeviceRequest.model_validate(devices or {}),
        matrix=matrix,
        schedule=schedule,
    )
    return {".".join(map(str, path)): fact for path, fact in found}


def refusal(model: type[QueueFields | DeviceRequest | Schedule | Matrix], /, **fields: object) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields)
    return str(caught.value.errors()[0]["msg"])


def test_defaults_are_those_of_an_ordinary_job() -> None:
    assert (QueueFields().priority_class, QueueFields().after, QueueFields().not_before) == (
        "normal",
        (),
        None,
    )
    assert (DeviceRequest().lent_as, DeviceRequest().least_capability) == (DeviceKind.WHOLE, (0, 0))
    assert complaints() == {}


def test_a_text_stands_for_a_job_that_must_succeed() -> None:
    queueing = QueueFields.model_validate({"after": ["prep", {"job": "eval", "condition": "any"}]})
    assert queueing.after == (JobDependency(job="prep"), JobDependency(job="eval", condition="any"))
    assert [after.wanted for after in queueing.after] == [DependencyCondition.OK, DependencyCondition.ANY]


def test_a_moment_needs_an_offset() -> None:
    assert QueueFields(not_before="2030-01-01T18:00:00Z").not_before == datetime(2030, 1, 1, 18, tzinfo=UTC)
    assert 'did you mean "2030-01-01T18:00:00Z"?' in refusal(QueueFields, not_before="2030-01-01T18:00:00")
    assert 'did you mean "2030-01-01T18:00:00Z"?' in refusal(QueueFields, not_before=datetime(2030, 1, 1, 18))  # noqa: DTZ001  that is the point
    assert "must be a time such as" in refusal(QueueFields, not_before="tomorrow")
    assert "not 5" in refusal(QueueFields, not_before=5)
    for outside in ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "1999-12-31T23:59:59Z"):
        assert "must be in the years 2000 to 9000, not" in refusal(QueueFields, not_before=outside)
    assert QueueFields(not_before="9000-12-31T23:59:59Z").not_before is not None


def test_devices_are_chosen_by_kind_model_memory_capability_and_links() -> None:
    devices = DeviceRequest(kind="slice", model="1g.10gb", memory="10GiB", capability="8.0")
    assert (devices.lent_as, devices.model, devices.memory) == (DeviceKind.SLICE, ("1g.10gb",), 10 * GIB)
    assert devices.least_capability == (8, 0)
    assert DeviceRequest(model=("H100", "H200")).model == ("H100", "H200")
    assert 'must be a compute capability such as "8.0"' in refusal(DeviceRequest, capability="eight")


@pytest.mark.parametrize("cron", ["0 3 * * 1-5", "*/10 8,20 1 JAN MON", "@daily"])
def test_a_cron_expression_has_five_parts_or_a_name(cron: str) -> None:
    assert Schedule(cron=cron).cron == cron


def test_what_is_no_schedule_is_told() -> None:
    assert 'must have five fields (minute hour day month weekday), but "0 3 * *" has 4' in refusal(
        Schedule, cron="0 3 * *"
    )
    assert '"3;" is not valid' in refusal(Schedule, cron="0 3; * * *")
    assert "must be a time zone such as" in refusal(Schedule, cron="@daily", timezone="../etc/passwd")
    assert Schedule(cron="@daily", timezone="America/Argentina/Ushuaia").timezone.endswith("Ushuaia")


@pytest.mark.parametrize(
    ("cron", "fact"),
    [
        ("0 0 30 2 *", '"0 0 30 2 *" never occurs'),
        ("0 0 31 4,6 *", '"0 0 31 4,6 *" never occurs'),
        ("0 0 32 2 *", '"32" is not a valid day in a cron expression'),
        ("0 0 1 13 *", '"13" is not a valid month in a cron expression'),
        ("@dayly", 'there is no schedule called "@dayly"; did you mean "@daily"?'),
        ("@reboot", "there is no schedule called"),
    ],
)
def test_a_cron_expression_that_never_comes_is_told(cron: str, fact: str) -> None:
    assert fact in refusal(Schedule, cron=cron)


@pytest.mark.parametrize("cron", ["0 0 29 2 *", "0 0 30 2 1", "0 0 * * 5#5", "0 0 L 2 *"])
def test_a_cron_expression_that_comes_seldom_comes(cron: str) -> None:
    assert Schedule(cron=cron).cron == cron


@pytest.mark.parametrize("name", NAMED)
def test_every_name_of_a_time_stands_for_a_cron_expression(name: str) -> None:
    assert Schedule(cron=NAMED[name]).cron == NAMED[name]


def test_a_time_zone_that_does_not_exist_is_told_with_a_guess() -> None:
    said = refusal(Schedule, cron="@daily", timezone="Europe/Berlim")
    assert said.endswith('there is no time zone "Europe/Berlim"; did you mean "Europe/Berlin"?')
    assert refusal(Schedule, cron="@daily", timezone="Nowhere").endswith(
        "; write a name such as Europe/Berlin"
    )


def test_models_and_references_are_told_apart_from_what_is_none() -> None:
    assert "must be part of a model's name" in refusal(DeviceRequest, model="H")
    assert "must be the id or the name of a job" in refusal(QueueFields, after=("a/b",))
    assert "is not a field that a matrix can vary" in refusal(Matrix, values={"a b": (1,)})


def test_a_matrix_has_every_combination_but_those_left_out() -> None:
    matrix = Matrix(values={"lr": (0.1, 0.2), "seed": (1, 2)}, exclude=({"lr": 0.2, "seed": 2},))
    assert list(matrix_combinations(matrix)) == [
        {"lr": 0.1, "seed": 1},
        {"lr": 0.1, "seed": 2},
        {"lr": 0.2, "seed": 1},
    ]
    part = Matrix(values={"lr": (0.1, 0.2), "seed": (1, 2)}, exclude=({"seed": 2}, {"other": 1}))
    assert len(matrix_combinations(part)) == 2


def test_what_is_wrong_with_a_matrix_is_told_at_once() -> None:
    values = {"lr": (0.1, 0.1), "seed": (), "x": (1, True)}
    found = complaints(matrix=Matrix(values=values, exclude=({"size": 1},)))
    assert found == {
        "matrix.values.lr": "has a value twice; remove one",
        "matrix.values.seed": "has no values; add some or remove the field",
        "matrix.exclude.0.size": "is not a field of the matrix; add it to matrix.values or remove it",
    }
    large = Matrix(values={"a": tuple(range(200)), "b": tuple(range(200))})
    assert complaints(matrix=large) == {
        "matrix.values": "makes 40000 jobs, and the limit is 1000; remove some values"
    }
    none = Matrix(values={"size": (1, 2)}, exclude=({"size": 3},))
    assert complaints(matrix=none) == {"matrix.exclude.0.size": "3 is not one of its values in the matrix"}
    empty = Matrix(values={"a": (1,)}, exclude=({"a": 1},))
    assert complaints(matrix=empty) == {"matrix.exclude": "excludes every combination; remove an entry"}


def test_devices_that_contradict_themselves_are_told() -> None:
    assert complaints(gpus=0, devices={"model": ("H100",)}).keys() == {"devices"}
    assert complaints(devices={"kind": "shared"}).keys() == {"devices.memory"}
    assert complaints(devices={"kind": "shared", "memory": "2TiB"})["devices.memory"].startswith(
        "2TiB is more"
    )
    assert complaints(devices={"kind": "shared", "memory": "2GiB"}) == {}
    assert complaints(devices={"kind": "slice", "linked": True}).keys() == {"devices.linked"}


def test_the_same_dependency_twice_is_told_and_so_is_a_time_beside_a_schedule() -> None:
    queue = {"after": ({"job": "a"}, {"job": "a", "condition": "any"}), "not_before": "2030-01-01T00:00:00Z"}
    assert complaints(queue=queue, schedule=Schedule(cron="@daily")).keys() == {
        "queue.after.1",
        "queue.not_before",
    }


@pytest.mark.parametrize(
    ("value", "found"),
    [(7, '7; put it in quotes: "7"'), (1.5, "1.5"), (True, "true"), (None, "null"), (["a"], "a list")],
)
def test_what_is_no_job_is_told_what_names_one(value: object, found: str) -> None:
    said = refusal(QueueFields, after=(value,))
    assert said.endswith(f"must be the id or the name of a job, or a mapping with it, not {found}")
