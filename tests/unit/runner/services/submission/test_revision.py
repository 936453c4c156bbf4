"""A job file made independent of where it was written: what is told, shown and set."""

import json
from functools import partial
from pathlib import Path, PurePosixPath

import pytest

from jobs.contract import Program
from jobs.contract.plans.causal_lm import CausalLm
from jobs.contract.plans.graph_forecast import GraphForecast
from jobs.contract.plans.pair_classifier import PairClassifier
from runner.adapters.host.paths import check_path
from runner.base.textfile import FileError
from runner.core.job.attempt import Attempt
from runner.core.policy.adjustments import Overrides
from runner.core.ports.code import WorkingDirectory
from runner.core.scheduler.snapshot import GIB, ResourceRequest
from runner.files.datasets import MANIFEST, dataset_dir
from runner.files.job.load import parse_job
from runner.files.job.model import JobFile, Retry
from runner.files.policy import job_policy as of_job
from runner.files.policy.load import load_named_policy
from runner.files.revision import (
    CodeReference,
    DataReference,
    Revision,
    find_data,
    find_inputs,
    parse_revision,
)

ROOT = PurePosixPath("/job")
SCRATCH = PurePosixPath("/tmp")


def job(workload: str, rest: str = "") -> JobFile:
    return parse_job(f"workload: {workload}\n{rest}".encode(), Path("job.yaml"))


def found(workload: str, base: Path, state: Path | None = None) -> DataReference | None:
    return find_data(job(workload), base, state or base / "state", check_path)


def resolved(workload: str, base: Path, rest: str = "", state: Path | None = None) -> Revision:
    asked = job(workload, rest)
    return Revision(
        job=asked,
        path=str(base / "job.yaml"),
        accelerator="cpu",
        uid=1000,
        gid=1000,
        groups=(),
        user="ann",
        data=find_data(asked, base, state or base / "state", check_path),
        inputs=find_inputs(asked, base, check_path),
    )


def test_a_profile_stays_what_it_was_when_the_job_was_submitted(tmp_path: Path) -> None:
    """Only a remedy that names another one looks at what is installed now."""
    now = resolved("{kind: causal_lm, data: stdlib}", tmp_path, "profile: cpu\n")
    then = now.profile().model_copy(update={"loader_workers": 7})
    pinned = now.model_copy(update={"settings": then})
    assert pinned.profile() == then
    assert pinned.profile(Overrides(micro_batch=2)).loader_workers == 7
    assert pinned.profile(Overrides(profile="baseline")) == now.profile(Overrides(profile="baseline"))


def test_needs_say_what_an_attempt_takes_and_on_which_devices_alone_it_can_run(tmp_path: Path) -> None:
    rest = (
        "resources: {gpus: 2, cpus: 3, memory: 8GiB}\n"
        "devices: {model: [H100, A100], memory: 40GiB, capability: '8.0', linked: true}\n"
    )
    on_cuda = resolved("{kind: program, command: [train]}", tmp_path, rest)
    needs = on_cuda.model_copy(update={"accelerator": "cuda"}).needs()
    assert needs == ResourceRequest(
        cpus=3.0,
        memory_bytes=8 * GIB,
        gpus=2,
        vendor="nvidia",
        models=("H100", "A100"),
        device_bytes=40 * GIB,
        capability=(8, 0),
        linked=True,
    )
    assert resolved("{kind: causal_lm, data: stdlib}", tmp_path).needs() == ResourceRequest(1.0, 4 * GIB)


def test_a_plain_process_is_told_the_paths_of_its_mounts_on_the_host(tmp_path: Path) -> None:
    rest = "mounts: [{source: out, target: /data/out}, {source: /data/out/x, target: /data/in}]\n"
    words = "[train, /data/out, --to=/data/out/step=9.ckpt, /data/outside, /data/in/a, x/data/in]"
    job = resolved(f"{{kind: program, command: {words}}}", tmp_path, rest)
    out = tmp_path / "out"
    told = ("train", str(out), f"--to={out}/step=9.ckpt", "/data/outside", "/data/out/x/a", "x/data/in")
    plain, contained = (job.spec("7", Attempt(1, 1), in_container=each).workload for each in (False, True))
    assert isinstance(plain, Program)
    assert isinstance(contained, Program)
    assert plain.command == told
    assert contained.command == tuple(words.strip("[]").split(", "))


def test_with_fewer_nodes_or_more_memory_an_attempt_needs_what_it_gets_on_those_nodes(tmp_path: Path) -> None:
    rest = "resources: {nodes: 4, gpus: 2, cpus: 3, memory: 8GiB}\n"
    job = resolved("{kind: program, command: [train], launcher: gang}", tmp_path, rest)
    needs = job.needs(Overrides(nodes=2, memory_bytes=12 * GIB))
    assert (needs.gpus, needs.cpus, needs.memory_bytes) == (4, 6.0, 24 * GIB)
    assert job.needs() == job.needs(Overrides(memory_bytes=1))


@pytest.mark.parametrize(("kind", "told"), [("shared", 8 * GIB), ("whole", None), ("slice", None)])
def test_only_who_shares_a_device_is_told_its_part(tmp_path: Path, kind: str, told: int | None) -> None:
    rest = f"resources: {{gpus: 1}}\ndevices: {{kind: {kind}, memory: 8GiB}}\n"
    one = resolved("{kind: causal_lm, data: stdlib}", tmp_path, rest)
    assert one.spec("7", Attempt(1, 1), in_container=True).device_bytes == told
    assert one.needs().device_bytes == 8 * GIB


def prepared(state: Path, name: str) -> Path:
    place = dataset_dir(state, name)
    place.mkdir(parents=True)
    (place / MANIFEST).write_text("{}")
    return place


def told(one: Revision, *, in_container: bool) -> CausalLm | GraphForecast | Program:
    plan = one.spec("7", Attempt(1, 1), in_container=in_container).workload
    assert isinstance(plan, CausalLm | GraphForecast | Program)
    return plan


@pytest.mark.parametrize(
    "workload",
    [
        "{kind: causal_lm, data: stdlib}",
        "{kind: graph_forecast, data: synthetic-stocks}",
        "{kind: program, command: [./train]}",
    ],
)
def test_what_comes_with_the_image_or_is_made_up_is_not_looked_for(tmp_path: Path, workload: str) -> None:
    one = resolved(workload, tmp_path)
    assert one.data is None
    assert list(one.resolved_mounts()) == []
    assert told(one, in_container=True) == one.job.workload


def test_what_a_workload_names_besides_its_data_is_mounted_below_the_name_of_its_field(
    tmp_path: Path,
) -> None:
    (tmp_path / "pairs.csv").touch()
    (tmp_path / "llama").mkdir()
    text = "{kind: pair_classifier, data: pairs.csv, form: sequence, pretrained: llama}"
    one = resolved(text, tmp_path)
    mounts = {str(mount.target): mount.source for mount in one.resolved_mounts()}
    assert mounts == {
        "/data/workload/pairs.csv": tmp_path / "pairs.csv",
        "/inputs/pretrained": tmp_path / "llama",
    }
    assert all(mount.read_only and not mount.trusted for mount in one.resolved_mounts())
    inside, outside = (one.spec("7", Attempt(1, 1), in_container=where).workload for where in (True, False))
    assert isinstance(inside, PairClassifier)
    assert isinstance(outside, PairClassifier)
    assert inside.pretrained == "/inputs/pretrained"
    assert outside.pretrained == str(tmp_path / "llama")
    assert parse_revision(one.model_dump_json()) == one
    assert "inputs" not in resolved("{kind: causal_lm, data: stdlib}", tmp_path).model_dump(mode="json")


def test_a_set_that_is_not_prepared_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        found("{kind: graph_forecast, data: sp500-stocks}", tmp_path)
    fact = 'the data set "sp500-stocks" is not prepared; run: runner data prepare sp500-stocks'
    assert str(caught.value) == f"job.yaml:1:40: workload.data: {fact}"


def test_the_name_of_a_set_means_the_set_even_where_a_directory_is_called_like_it(tmp_path: Path) -> None:
    place = prepared(tmp_path / "state", "watch")
    (tmp_path / "watch").mkdir()
    named = found("{kind: imu_stream, data: watch}", tmp_path)
    assert named == DataReference(path=str(place), prepared=True)
    assert found("{kind: imu_stream, data: ./watch}", tmp_path) == DataReference(path=str(tmp_path / "watch"))


def test_a_prepared_set_is_shown_as_a_directory_that_nobody_could_have_swapped(tmp_path: Path) -> None:
    place = prepared(tmp_path / "state", "sp500-stocks")
    one = resolved("{kind: graph_forecast, data: sp500-stocks}", tmp_path)
    (shown,) = one.resolved_mounts()
    assert (shown.source, shown.target, shown.read_only, shown.trusted) == (
        place,
        PurePosixPath("/data/workload"),
        True,
        True,
    )
    assert told(one, in_container=True).data == "/data/workload"  # type: ignore[union-attr]
    assert told(one, in_container=False).data == str(place)  # type: ignore[union-attr]


def test_a_directory_of_the_user_is_looked_at_as_the_user(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (shown,) = resolved("{kind: causal_lm, data: text}", tmp_path).resolved_mounts()
    assert (shown.source, shown.trusted) == (tmp_path / "text", False)


def test_a_file_keeps_its_name_because_its_ending_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "it's; mine.csv").write_text("date,A\n")
    one = resolved('{kind: graph_forecast, data: "it\'s; mine.csv"}', tmp_path)
    (shown,) = one.resolved_mounts()
    assert shown.target == PurePosixPath("/data/workload/it's; mine.csv")
    assert told(one, in_container=True).data == str(shown.target)  # type: ignore[union-attr]
    assert told(one, in_container=False).data == str(shown.source)  # type: ignore[union-attr]


def test_the_code_of_a_program_appears_where_its_command_starts(tmp_path: Path) -> None:
    one = resolved("{kind: program, command: [./train], code: src}", tmp_path)
    (shown,) = one.resolved_mounts()
    assert (shown.source, shown.target, shown.read_only) == (tmp_path / "src", PurePosixPath("/code"), True)
    assert told(one, in_container=True).code.path == "/code"  # type: ignore[union-attr]
    assert told(one, in_container=False).code.path == str(tmp_path / "src")  # type: ignore[union-attr]


def test_a_snapshot_of_the_code_is_no_mount_of_the_directory(tmp_path: Path) -> None:
    one = resolved("{kind: program, command: [./train], code: src}", tmp_path)
    kept = one.model_copy(update={"code": CodeReference(snapshot="5e6f", files=1, bytes=2)})
    assert (list(kept.resolved_mounts()), one.working_directory()) == ([], None)
    assert kept.working_directory() == WorkingDirectory("5e6f", read_only=False)
    assert told(kept, in_container=True).code.path == "/code"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("git", "told"),
    [
        ({}, None),
        ({"commit": "1f0c", "dirty": False}, "1f0c"),
        ({"commit": "1f0c", "dirty": None}, "1f0c"),
        ({"commit": "1f0c", "dirty": True}, "1f0c-dirty"),
    ],
)
def test_a_program_is_told_what_code_runs(
    tmp_path: Path, git: dict[str, str | bool | None], told: str | None
) -> None:
    one = resolved("{kind: program, command: [./train], code: src}", tmp_path)
    code = CodeReference.model_validate({"snapshot": "5e6f", "files": 1, "bytes": 2, **git})
    facts = one.model_copy(update={"code": code}).facts(PurePosixPath("/run/secrets"))
    assert facts == {"RUNNER_CODE_DIGEST": "5e6f"} | ({} if told is None else {"RUNNER_GIT_COMMIT": told})


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("", {}),
        ("umask: 027\n", {"RUNNER_UMASK": "027"}),
        ("mounts: [{source: a, target: /data/a}]\n", {}),
        ("mounts: [{source: a, target: /data/a, read_only: false}]\n", {"RUNNER_UMASK": "022"}),
        ("secrets: {A: x}\n", {"RUNNER_SECRETS_DIR": "/s"}),
        ("secrets: {A: x}\nsecret_env: [A]\n", {"RUNNER_SECRETS_DIR": "/s", "RUNNER_SECRET_ENV": "A"}),
    ],
)
def test_a_job_is_told_of_its_secrets_and_its_umask(tmp_path: Path, rest: str, told: dict[str, str]) -> None:
    assert resolved("{kind: program, command: [./x]}", tmp_path, rest).facts(PurePosixPath("/s")) == told


def test_the_code_of_a_program_is_its_path_as_json_unless_more_is_said(tmp_path: Path) -> None:
    short = resolved("{kind: program, command: [./train], code: {path: src}}", tmp_path)
    long = resolved("{kind: program, command: [./train], code: {path: src, live: true}}", tmp_path)
    found = [json.loads(one.model_dump_json())["job"]["workload"]["code"] for one in (short, long)]
    assert found == ["src", {"path": "src", "live": True}]
    assert all(parse_revision(one.model_dump_json()).job == one.job for one in (short, long))


def test_mounts_come_before_the_data_and_keep_their_rights(tmp_path: Path) -> None:
    rest = "mounts: [{source: out, target: /data/out, read_only: false}]\n"
    (tmp_path / "text").mkdir()
    one = resolved("{kind: causal_lm, data: text}", tmp_path, rest)
    assert [(each.target.name, each.read_only) for each in one.resolved_mounts()] == [
        ("out", False),
        ("workload", True),
    ]


def test_a_revision_survives_the_store(tmp_path: Path) -> None:
    prepared(tmp_path / "state", "watch")
    rest = "profile: {extends: baseline, compile: true, micro_batch: auto, stream_buffer_memory: 1GiB}\n"
    before = resolved("{kind: imu_stream, data: watch}", tmp_path, rest)
    after = Revision.model_validate_json(before.model_dump_json())
    assert after == before
    assert after.profile() == before.profile()
    assert after.profile().stream_buffer_memory == 1024**3
    assert json.loads(before.model_dump_json())["job"]["workload"]["kind"] == "imu_stream"


def test_the_profile_of_the_accelerator_reaches_the_attempt_with_its_environment(tmp_path: Path) -> None:
    one = resolved("{kind: causal_lm, data: stdlib}", tmp_path, "environment: {LOG: debug}\n")
    assert one.spec("7", Attempt(1, 1), in_container=True).profile.name == "cpu"
    on_cuda = one.model_copy(update={"accelerator": "cuda"})
    assert on_cuda.profile().name == "cuda"
    assert on_cuda.environment(ROOT, SCRATCH)["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert one.environment(ROOT, SCRATCH)["LOG"] == "debug"
    assert one.environment(ROOT, SCRATCH)["TRITON_CACHE_DIR"] == "/job/cache/triton"


def test_what_the_job_file_asks_for_in_vain_is_a_warning(tmp_path: Path) -> None:
    rest = "profile: {extends: cpu, graph_cache: disk, threads: 2}\n"
    asked = partial(resolved, base=tmp_path, rest=rest)
    assert asked("{kind: causal_lm, data: stdlib}").warnings == (
        "profile.graph_cache: has no effect: causal_lm has no use for it",
    )
    prepared(tmp_path / "state", "sp500-stocks")
    assert asked("{kind: graph_forecast, data: sp500-stocks}").warnings == ()


def test_a_profile_that_a_program_would_have_to_apply_is_a_warning_named_or_written(tmp_path: Path) -> None:
    program = "{kind: program, command: [python, train.py]}"
    asked = partial(resolved, program, tmp_path)
    assert asked().warnings == ()
    [named] = asked("profile: cuda-hopper\n").warnings
    assert named.startswith("profile: cuda-hopper: precision, tf32_matmul, ")
    assert named.endswith(
        ": has no effect: a program of your own applies it itself, with gpu_job_runner.attach.apply_profile()"
    )
    [written] = asked("profile: {precision: bf16, threads: 2}\n").warnings
    assert written.startswith("profile.precision: has no effect: a program of your own")


def test_variables_of_a_profile_reach_every_job_and_those_of_the_job_win(tmp_path: Path) -> None:
    rest = "profile: {environment: {ONE: profile, TWO: profile}}\nenvironment: {TWO: job}\n"
    for workload in ("{kind: program, command: [python, train.py]}", "{kind: causal_lm, data: stdlib}"):
        found = resolved(workload, tmp_path, rest).environment(ROOT, SCRATCH)
        assert (found["ONE"], found["TWO"]) == ("profile", "job")
    rest = "profile: {extends: rocm-strix-halo, memory_fraction: null}\n"
    card = resolved("{kind: causal_lm, data: stdlib}", tmp_path, rest)
    assert card.environment(ROOT, SCRATCH)["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"] == "1"


def test_more_loader_processes_than_cores_are_a_warning(tmp_path: Path) -> None:
    asked = partial(resolved, "{kind: causal_lm, data: stdlib}", tmp_path)
    rest = "profile: {{loader_workers: {}}}\nresources: {{cpus: {}}}\n"
    assert asked(rest.format(2, 2)).warnings == ()
    [warning] = asked(rest.format(8, 2)).warnings
    assert warning == (
        "profile.loader_workers: 8 processes and the trainer share 2 cores and take turns;"
        " raise resources.cpus or lower it"
    )


@pytest.mark.parametrize(
    ("turned", "expected", "name"),
    [
        (Overrides(), {"micro_batch": 8, "loader_workers": 4}, "cpu+loader_workers+micro_batch"),
        (Overrides(micro_batch=4), {"micro_batch": 4, "loader_workers": 4}, "cpu+loader_workers+micro_batch"),
        (
            Overrides(loader_workers=0, precision="fp32"),
            {"micro_batch": 8, "loader_workers": 0, "precision": "fp32"},
            "cpu+loader_workers+micro_batch+precision",
        ),
        (
            Overrides(profile="compat"),
            {"micro_batch": 8, "deterministic": True},
            "compat+loader_workers+micro_batch",
        ),
    ],
)
def test_what_remedies_have_turned_lies_over_the_profile(
    turned: Overrides, expected: dict[str, object], name: str, tmp_path: Path
) -> None:
    said = "profile: {extends: cpu, micro_batch: 8, loader_workers: 4}\n"
    one = resolved("{kind: causal_lm, data: stdlib}", tmp_path, said)
    profile = one.spec("7", Attempt(2, 1, turned=turned), in_container=True).profile
    assert profile.name == name
    assert expected.items() <= profile.model_dump().items()
    assert one.profile_name(turned) == (turned.profile or "cpu")


def test_the_environment_follows_what_was_turned(tmp_path: Path) -> None:
    one = resolved("{kind: causal_lm, data: stdlib}", tmp_path, "resources: {cpus: 4}\n")
    plain = one.environment(ROOT, SCRATCH)
    turned = one.environment(ROOT, SCRATCH, Overrides(loader_workers=3))
    assert (plain["OMP_NUM_THREADS"], turned["OMP_NUM_THREADS"]) == ("4", "1")


def test_the_policy_is_kept_with_the_revision(tmp_path: Path) -> None:
    one = resolved("{kind: causal_lm, data: stdlib}", tmp_path, "retry: {max_attempts: 2}\n")
    kept = one.model_copy(update={"policy": of_job.serialize_policy(load_named_policy("strict"))})
    again = Revision.model_validate_json(kept.model_dump_json())
    assert (again.policy_in_force().name, again.policy_in_force().ceilings.attempts) == ("strict", 2)
    assert one.policy_in_force().name == "default"


def test_a_retry_that_its_policy_does_not_allow_is_warned_about(tmp_path: Path) -> None:
    """A job file can only tighten; whoever writes more waits for attempts that never come."""
    one = resolved("{kind: program, command: [train]}", tmp_path)
    for retry, warnings in (
        (Retry(max_attempts=20, no_progress=3), ()),
        (
            Retry(max_attempts=21, no_progress=9),
            (
                "retry.max_attempts: has no effect, because the policy allows only 20",
                "retry.no_progress: has no effect, because the policy allows only 3",
            ),
        ),
    ):
        asked = one.model_copy(update={"job": one.job.model_copy(update={"retry": retry})})
        assert asked.warnings == warnings


def test_a_pipe_between_words_of_a_command_is_warned_about(tmp_path: Path) -> None:
    (warning,) = resolved("{kind: program, command: [train, '|', tee]}", tmp_path).warnings
    assert warning.startswith("workload.command[1]: '|' is passed to the program as it is")
