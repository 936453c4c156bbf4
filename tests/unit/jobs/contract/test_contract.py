"""Checks of a reader of checkpoints; no torch needed on this side."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from jobs.contract import (
    MAX_MANIFEST_BYTES,
    AttemptSpec,
    CheckpointInvalid,
    CheckpointPlan,
    Profile,
    RunPaths,
    Status,
    checkpoint_name,
    checkpoints,
    dump,
    excess_workers,
    file_sha256,
    inside_source,
    read_manifest,
    verify,
)
from jobs.contract.plans.causal_lm import CausalLm
from jobs.contract.plans.imu_stream import ImuStream
from jobs.contract.plans.pair_classifier import PairClassifier


def save(lineage: Path, step: int = 7, **changes: object) -> Path:
    """Write a checkpoint by hand, as any program may; ``changes`` go into its manifest."""
    where = lineage / checkpoint_name(step)
    where.mkdir(parents=True)
    (where / "state.pt").write_bytes(b"weights")
    known = {"bytes": 7, "sha256": file_sha256(where / "state.pt")}
    manifest = {
        "contract_version": 1,
        "job_id": "1",
        "step": step,
        "lineage": 1,
        "attempt": 1,
        "revision": 1,
        "created": 0.0,
        "files": {"state.pt": known},
        **changes,
    }
    (where / "manifest.json").write_text(json.dumps(manifest))
    return where


def test_a_checkpoint_that_fits_its_manifest_is_valid(tmp_path: Path) -> None:
    assert verify(save(tmp_path)).step == 7


def test_checkpoints_are_listed_newest_first_and_other_things_are_not(tmp_path: Path) -> None:
    for step in (7, 30, 9):
        save(tmp_path, step)
    for name in ("final", "bad-step-00000031", ".tmp-32", "step-x"):
        (tmp_path / name).mkdir()
    assert [step for step, _ in checkpoints(tmp_path)] == [30, 9, 7]
    assert list(checkpoints(tmp_path / "absent")) == []
    assert list(checkpoints(tmp_path / "final" / ".." / checkpoint_name(7) / "state.pt")) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contract_version": 2}, r"written by a newer contract \(2\)"),
        ({"files": {}}, "manifest is not valid: files: "),
        (
            {"files": {"../state.pt": {"bytes": 1, "sha256": "0" * 64}}},
            "outside the checkpoint: '../state.pt'",
        ),
        ({"files": {"gone.pt": {"bytes": 1, "sha256": "0" * 64}}}, "gone.pt: No such file"),
        ({"files": {"state.pt": {"bytes": 8, "sha256": "0" * 64}}}, "7 bytes where the manifest says 8"),
        ({"files": {"state.pt": {"bytes": 7, "sha256": "0" * 64}}}, "content differs from its sha256"),
    ],
)
def test_what_does_not_fit_is_invalid_and_says_why(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointInvalid, match=words):
        verify(save(tmp_path, **changes))


@pytest.mark.parametrize("trick", ["missing", "pipe", "huge", "no object", "link"])
def test_a_manifest_that_is_no_manifest_is_invalid(tmp_path: Path, trick: str) -> None:
    manifest = save(tmp_path) / "manifest.json"
    text = manifest.read_text()
    manifest.unlink()
    match trick:
        case "pipe":
            os.mkfifo(manifest)
        case "huge":
            manifest.write_text(text + " " * MAX_MANIFEST_BYTES)
        case "no object":
            manifest.write_text("[")
        case "link":
            (tmp_path / "elsewhere").write_text(text)
            manifest.symlink_to(tmp_path / "elsewhere")
        case _:
            assert not manifest.exists()
    with pytest.raises(CheckpointInvalid, match="manifest"):
        read_manifest(manifest.parent)


def test_a_manifest_of_another_step_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match="manifest is for step 7"):
        verify(save(tmp_path).rename(tmp_path / checkpoint_name(8)))


def test_a_final_artifact_may_be_of_any_step(tmp_path: Path) -> None:
    where = save(tmp_path).rename(tmp_path / "final")
    assert verify(where).step == 7


def test_every_file_name_has_one_owner() -> None:
    paths = RunPaths(Path("/job"), 2, 3)
    assert [
        str(p) for p in (paths.spec, paths.effective, paths.status, paths.metrics, paths.result, paths.log)
    ] == [
        f"/job/attempts/2/{name}"
        for name in ("spec.json", "effective.json", "status.json", "metrics.jsonl", "result.json", "log.txt")
    ]
    assert (str(paths.final_dir), str(paths.home)) == ("/job/lineages/3/final", "/job/home")
    assert str(paths.inside_program("relay")) == "/job/attempts/2.relay.py"


def test_a_program_that_runs_inside_is_plain_python_text() -> None:
    assert compile(inside_source("relay"), "relay.py", "exec").co_filename == "relay.py"


def test_a_spec_is_closed_and_survives_the_way_to_disk_and_back() -> None:
    spec = AttemptSpec(job_id="1", attempt=1, lineage=1, workload=CausalLm(data="stdlib"))
    assert AttemptSpec.model_validate_json(dump(spec)) == spec
    with pytest.raises(ValidationError, match="Extra inputs"):
        AttemptSpec.model_validate({**json.loads(dump(spec)), "privileged": True})
    with pytest.raises(ValidationError, match="width 10 is not a multiple of heads 4"):
        CausalLm(data="stdlib", width=10)
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        CheckpointPlan(keep=1)


def test_a_directory_swapped_for_a_link_while_it_is_read_shows_nothing_behind_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest names a file of somebody else; its size would be confirmed through the link."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "shadow").write_bytes(b"root:x")
    theirs = {"bytes": 6, "sha256": file_sha256(outside / "shadow")}
    where = save(tmp_path / "1")
    manifest = json.loads((where / "manifest.json").read_text())
    manifest["files"]["shadow"] = theirs
    (where / "manifest.json").write_text(json.dumps(manifest))

    read = os.fstat

    def swap_then_read(descriptor: int) -> os.stat_result:
        if not where.is_symlink():
            where.rename(tmp_path / "away")
            where.symlink_to(outside)
        return read(descriptor)

    monkeypatch.setattr("jobs.contract.reading.os.fstat", swap_then_read)
    with pytest.raises(CheckpointInvalid, match="shadow: No such file"):
        verify(where)


def test_a_checkpoint_that_is_a_link_is_invalid(tmp_path: Path) -> None:
    where = save(tmp_path / "1")
    where.rename(tmp_path / "elsewhere")
    where.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointInvalid, match="manifest cannot be read"):
        verify(where)


def test_a_file_name_that_no_file_can_have_is_invalid(tmp_path: Path) -> None:
    where = save(tmp_path, files={"a\0b": {"bytes": 1, "sha256": "0" * 64}})
    with pytest.raises(CheckpointInvalid, match="null"):
        verify(where)


def test_a_file_that_cannot_be_read_to_its_end_makes_a_checkpoint_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    where = save(tmp_path)
    monkeypatch.setattr("jobs.contract.reading.hashlib.file_digest", fail)
    with pytest.raises(CheckpointInvalid, match=r"state\.pt: Input/output error"):
        verify(where)


@pytest.mark.parametrize(
    ("workers", "cpus", "excess"), [(0, 0.5, False), (1, 0.5, False), (2, 1.9, True), (2, 2.0, False)]
)
def test_more_loader_processes_than_cores_are_too_many(workers: int, cpus: float, *, excess: bool) -> None:
    assert (excess_workers(Profile(loader_workers=workers), cpus) is not None) == excess


def test_a_plan_takes_packages_only_where_its_fields_ask_for_some() -> None:
    assert not ImuStream(kind="imu_stream", data="x").takes_packages
    assert not CausalLm(kind="causal_lm", data="x").takes_packages
    assert CausalLm(kind="causal_lm", data="x", tokenizer="tokens.json").takes_packages
    own = {"kind": "pair_classifier", "data": "x", "form": "sequence"}
    assert not PairClassifier.model_validate(own).takes_packages
    assert PairClassifier.model_validate({**own, "pretrained": "model"}).takes_packages


def test_only_a_pretrained_classifier_is_exported_in_a_layout_of_its_library() -> None:
    own = {"kind": "pair_classifier", "data": "x", "form": "sequence"}
    known = PairClassifier.exports
    assert PairClassifier.model_validate(own).formats == known
    assert PairClassifier.model_validate({**own, "pretrained": "model"}).formats == known | {"huggingface"}
    assert PairClassifier.model_validate({**own, "pretrained": "m", "lora": {}}).formats == known | {"peft"}


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**4000], ids=["64 bits", "negative", "huge"])
def test_an_integer_that_nobody_can_store_is_missing(number: int) -> None:
    text = f'{{"phase": "train", "time": 1, "step": {number}, "metrics": {{"a": {number}, "b": 2}}}}'
    status = Status.model_validate_json(text)
    assert (status.step, status.metrics) == (0, {"b": 2})
    assert Status.model_validate_json(text.replace(str(number), str(2**63 - 1))).step == 2**63 - 1
