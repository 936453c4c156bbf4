import json
from pathlib import Path

import pytest

from jobs.contract import profiles_dir
from runner.base.errors import UsageError
from runner.cli.bench import variants
from runner.cli.bench.variants import (
    SMALL,
    ProfileVariant,
    ablation_variants,
    job_name,
    profile_variants,
    read_base_job,
    render_job_file,
)
from runner.files.job.load import parse_job
from runner.files.job.model import resolve_profile
from runner.files.profiles.load import load_profile, profile_names


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("profile", ["baseline", "cpu"])
def test_every_small_job_is_a_job_file_under_either_end(kind: str, profile: str) -> None:
    job = parse_job(
        render_job_file(read_base_job(kind, 10), ProfileVariant(profile, {"extends": profile})),
        Path("x.yaml"),
    )
    assert (job.workload.kind, job.profile.extends, job.retry.max_attempts) == (kind, profile, 1)


def test_a_job_file_keeps_what_it_says_but_for_profile_and_attempts(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "workload: {kind: causal_lm, data: stdlib, steps: 100, warmup_steps: 50, eval_every: 10}\n"
        "environment: {VERSION: 1.10}\numask: 022\nprofile: deterministic\nretry: {backoff: 1s}\n"
    )
    found = read_base_job(str(path), 20)
    written = json.loads(render_job_file(found, ProfileVariant("cpu", {"extends": "cpu"})))
    assert (written["environment"], written["umask"]) == ({"VERSION": "1.10"}, "022")
    assert written["profile"] == {"extends": "cpu"}
    assert written["retry"] == {"backoff": "1s", "max_attempts": 1}
    assert [written["workload"][key] for key in ("steps", "warmup_steps", "eval_every")] == [20, 20, 10]
    assert (found.name, found.path) == ("mine", str(path))


def test_what_is_neither_a_workload_nor_a_file_gets_a_hint() -> None:
    with pytest.raises(UsageError, match="neither a job file nor a workload; did you mean"):
        read_base_job("graph_forcast", None)


@pytest.mark.parametrize("section", ["matrix: {values: {seed: [1, 2]}}", "schedule: {cron: '@daily'}"])
def test_many_jobs_are_not_measured_as_one(tmp_path: Path, section: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"workload: {{kind: causal_lm, data: stdlib}}\n{section}\n")
    with pytest.raises(UsageError, match=f"has a {section.partition(':')[0]}; what is measured is one job"):
        read_base_job(str(path), None)


def test_a_program_keeps_its_own_number_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("workload: {kind: program, command: [python3, train.py]}\n")
    with pytest.raises(UsageError, match="a program decides itself"):
        read_base_job(str(path), 5)


def test_profiles_must_exist_and_differ() -> None:
    assert [arm.name for arm in profile_variants(["baseline", "auto"])] == ["baseline", "auto"]
    with pytest.raises(UsageError, match='no profile "basline"'):
        profile_variants(["basline", "cpu"])
    with pytest.raises(UsageError, match="two different ones"):
        profile_variants(["cpu"])


def test_ablation_puts_back_one_switch_at_a_time_between_the_two_ends() -> None:
    found, skipped = ablation_variants(read_base_job("graph_forecast", 10), "baseline", "auto")
    assert (found[0].name, found[-1].name) == ("baseline", "auto")
    assert all(len(arm.profile) == 2 for arm in found[1:-1])
    assert {"extends": "auto", "graph_cache": "off"} in [dict(arm.profile) for arm in found]
    assert skipped["shared_targets"] == "graph_forecast has no use for it"
    assert len({job_name(read_base_job("graph_forecast", 10), arm) for arm in found}) == len(found)


def test_every_ablated_arm_is_a_job_file() -> None:
    given = read_base_job("imu_stream", 10)
    found, _ = ablation_variants(given, "baseline", "cpu")
    assert len([parse_job(render_job_file(given, arm), Path("x.yaml")) for arm in found]) > 4


def test_a_flip_that_contradicts_another_switch_is_left_out_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "gpu.yaml"
    path.write_text("workload: {kind: causal_lm, data: stdlib}\nresources: {gpus: 1}\n")
    found, skipped = ablation_variants(read_base_job(str(path), None), "cuda", "deterministic")
    assert "contradicts" in skipped["cudnn_benchmark"]
    assert "cudnn_benchmark" not in "".join(
        variants.job_name(read_base_job(str(path), None), a) for a in found
    )


SOURCES = {
    "mobileposer": ("imu_stream", {"stream_buffer", "micro_batch", "placement"}),
    "gogooku3": ("graph_forecast", {"graph_cache"}),
    "gogo2": ("resident_transformer", {"transfer", "clone_batches"}),
    "lmol": ("pair_classifier", set()),
    "agi2": ("causal_lm", {"attention"}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_two_profiles_of_a_source_differ_in_what_its_document_changed(source: str) -> None:
    kind, changed = SOURCES[source]
    job = read_base_job(kind, 10)
    found, skipped = ablation_variants(job, f"{source}-before", f"{source}-after")
    names = [arm.name for arm in found]
    assert (names[0], names[-1]) == (f"{source}-before", f"{source}-after")
    flipped = {name.partition(", ")[2].partition(":")[0] for name in names[1:-1]}
    assert changed <= flipped
    assert not flipped & set(variants.NEEDS_GPU)
    for arm in found:
        read = parse_job(render_job_file(job, arm), Path("x.yaml"))
        assert resolve_profile(read, "cpu").precision in {"fp32", "tf32"}
        assert resolve_profile(read, "cpu").compile == "off"
    assert "loader_workers" not in flipped or source in {"lmol", "agi2"}  # else as many as there are cores
    for switch in skipped.keys() & set(variants.NEEDS_GPU):
        assert skipped[switch] == "needs a GPU; held equal in both profiles"


def test_anomaly_detection_is_the_waste_of_one_source_alone() -> None:
    wasteful = {
        name
        for name in profile_names(profiles_dir())
        if load_profile(name, profiles_dir())["anomaly_detection"].value
    }
    assert wasteful == {"baseline", "mobileposer-before", "mobileposer-after"}


def test_on_a_gpu_the_profiles_of_a_source_are_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "gpu.yaml"
    path.write_text("workload: {kind: graph_forecast, data: sp500-stocks}\nresources: {gpus: 1, cpus: 32}\n")
    found, skipped = ablation_variants(read_base_job(str(path), None), "gogooku3-before", "gogooku3-after")
    assert (found[0].profile, skipped) == ({"extends": "gogooku3-before"}, {})
    assert {"extends": "gogooku3-after", "precision": "fp16"} in [arm.profile for arm in found]
