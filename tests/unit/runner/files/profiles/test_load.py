import os
from pathlib import Path

import pytest

from jobs.contract import SWITCHES, Profile, Trace, profiles_dir
from runner.base.errors import UsageError
from runner.base.textfile import Position
from runner.files.job.load import parse_job
from runner.files.job.model import resolve_profile
from runner.files.profiles.load import (
    ACCELERATORS,
    ProfileChoice,
    ProfileSetting,
    first_comment,
    load_profile,
    profile_chain,
    profile_names,
    resolve_choice,
)

PLAIN_CHANGES = {
    "precision": "bf16", "tf32_matmul": True, "tf32_cudnn": True, "deterministic": False,
    "cudnn_benchmark": True,
    "compile": "max-autotune", "compile_dynamic": None, "compile_fullgraph": True,
    "activation_checkpointing": True, "micro_batch": "auto", "eval_batch": 3, "loader_workers": 2,
    "loader_prefetch": 4, "placement": "device", "non_blocking": True, "stream_buffer_memory": 2**20,
    "host_checks_every": 5, "memory_log_every": 7, "memory_cleanup_every": 9, "threads": 3,
    "allocator": "expandable_segments", "launch_blocking": True, "memory_fraction": 0.5,
    "trace": Trace(steps=(100, 110)), "streaming": False,
}  # fmt: skip
WORKLOAD = "workload: {kind: causal_lm, data: stdlib}\n"


def profile(text: str) -> Profile:
    return resolve_profile(parse_job((WORKLOAD + text).encode(), Path("job.yaml")), "cpu")


def test_a_pipe_in_place_of_a_profile_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.yaml")
    with pytest.raises(UsageError, match=r"mine\.yaml: is not a regular file"):
        load_profile("mine", tmp_path)


def write(directory: Path, **profiles: str) -> Path:
    for name, text in profiles.items():
        (directory / f"{name}.yaml").write_text(text)
    return directory


def test_the_profile_of_an_ordinary_job_is_that_of_its_accelerator() -> None:
    job = parse_job(WORKLOAD.encode(), Path("job.yaml"))
    assert [resolve_profile(job, accelerator).name for accelerator in ACCELERATORS] == [*ACCELERATORS]


def test_compat_is_what_the_contract_does_by_itself() -> None:
    assert profile("profile: compat\n") == Profile()


@pytest.mark.parametrize("name", profile_names(profiles_dir()))
def test_a_shipped_profile_is_valid_and_gives_a_reason_for_every_value(name: str) -> None:
    assert resolve_choice(ProfileChoice(extends=name), profiles_dir(), "cpu").name == name
    unexplained = [
        switch for switch, said in load_profile(name, profiles_dir()).items() if len(said.reason) < 10
    ]
    assert unexplained == []


@pytest.mark.parametrize("name", ["baseline", "compat"])
def test_a_profile_that_extends_none_says_every_switch(name: str) -> None:
    assert profile_chain(name, profiles_dir()) == (name,)
    assert {said.profile for said in load_profile(name, profiles_dir()).values()} == {name}


def test_every_other_shipped_profile_begins_with_compat() -> None:
    others = set(profile_names(profiles_dir())) - {"baseline"}
    assert {profile_chain(name, profiles_dir())[-1] for name in others} == {"compat"}
    assert {"cpu", "cuda", "cuda-ampere", "cuda-hopper", "cuda-24gb", "rocm", "rocm-strix-halo"} < others


def test_a_job_can_change_a_profile_and_the_name_tells_what() -> None:
    found = profile("profile: {extends: cpu, threads: 2, compile: true}\n")
    assert (found.name, found.threads, found.compile) == ("cpu+compile+threads", 2, "default")
    assert found.optimizer == profile("profile: cpu\n").optimizer


def test_a_job_can_give_its_changes_a_name() -> None:
    assert profile("profile: {name: mine, threads: 2}\n").name == "mine"


def test_a_change_can_set_a_field_back_to_null(tmp_path: Path) -> None:
    profiles = write(tmp_path, small="micro_batch: 4\n")
    choice = ProfileChoice(extends="small", micro_batch=None)
    assert resolve_choice(ProfileChoice(extends="small"), profiles, "cpu").micro_batch == 4
    assert resolve_choice(choice, profiles, "cpu").micro_batch is None


def test_a_profile_may_extend_one_that_extends_another(tmp_path: Path) -> None:
    profiles = write(
        tmp_path, a="threads: 1\nprecision: bf16\n", b="extends: a\nthreads: 2\n", c="extends: b\n"
    )
    found = resolve_choice(ProfileChoice(extends="c"), profiles, "cpu")
    assert (found.threads, found.precision) == (2, "bf16")


def test_profiles_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    profiles = write(tmp_path, a="extends: b\n", b="extends: a\n")
    with pytest.raises(UsageError, match=r'profile "a" extends itself: a -> b -> a'):
        resolve_choice(ProfileChoice(extends="a"), profiles, "cpu")


def test_a_profile_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='there is no profile "a" in '):
        resolve_choice(ProfileChoice(extends="a"), tmp_path, "cpu")


def test_a_mistake_in_a_profile_file_is_shown_with_its_place(tmp_path: Path) -> None:
    profiles = write(tmp_path, a="# mine\nthread: 1\nprecision: half\n")
    with pytest.raises(UsageError) as caught:
        resolve_choice(ProfileChoice(extends="a"), profiles, "cpu")
    assert str(caught.value).splitlines() == [
        f'{tmp_path}/a.yaml:2:1: thread: unknown field; did you mean "threads"?',
        (
            f'{tmp_path}/a.yaml:3:12: precision: must be one of "auto", "fp32", "tf32", "bf16" or "fp16", '
            'not "half"'
        ),
    ]


def test_only_yaml_files_with_plain_names_are_profiles(tmp_path: Path) -> None:
    write(tmp_path, good="threads: 1\n", **{".hidden": "", "with space": ""})
    (tmp_path / "README.md").write_text("")
    assert profile_names(tmp_path) == ("good",)


def test_a_profile_called_auto_would_never_be_found(tmp_path: Path) -> None:
    assert profile_names(write(tmp_path, auto="threads: 1\n")) == ()


def test_a_profile_file_can_extend_that_of_the_accelerator(tmp_path: Path) -> None:
    profiles = write(tmp_path, cpu="threads: 3\n", rocm="threads: 5\n", mine="extends: auto\n")
    assert resolve_choice(ProfileChoice(extends="mine"), profiles, "rocm").threads == 5
    assert profile_chain("mine", profiles, "cpu") == ("mine", "cpu")


def test_who_says_a_value_is_known_with_its_place_and_its_reason(tmp_path: Path) -> None:
    below = (
        "# What it is for,\n# in two lines.\n#\nthreads: 1    # first\n              # and second\nseed: 1\n"
    )
    profiles = write(tmp_path, a=below.replace("seed: 1\n", ""), b="# b\nextends: a\ncompile: off\n")
    found = load_profile("b", profiles)
    assert found["threads"] == ProfileSetting(1, "a", Position(4, 1), "first and second", 1)
    assert found["threads"].place == "a.yaml:4"
    assert found["compile"] == ProfileSetting("off", "b", Position(3, 1), "", 2)
    assert found["precision"] == ProfileSetting("fp32")
    assert found["precision"].place == ""
    assert first_comment(profiles / "a.yaml") == "What it is for, in two lines."


def test_the_baseline_has_every_waste_that_a_switch_can_bring_back() -> None:
    waste = {
        "attention": "rebuilt_mask", "graph_cache": "off", "conversion": "each_use", "shared_targets": False,
        "encode_once": False, "last_position_only": False, "stream_buffer": 1, "clone_batches": True,
        "transfer": "always", "loader_workers": 0, "precision": "fp32", "optimizer": "loop",
        "anomaly_detection": True, "placement": "host", "non_blocking": False, "async_save": False,
    }  # fmt: skip
    found = profile("profile: baseline\n")
    assert {switch: getattr(found, switch) for switch in waste} == waste
    assert found.deterministic


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_can_be_changed_in_a_job_file(switch: str) -> None:
    other = {**profile("profile: baseline\n").model_dump(), **PLAIN_CHANGES}[switch]
    found = resolve_choice(
        ProfileChoice.model_validate({"extends": "compat", switch: other}), profiles_dir(), "cpu"
    )
    assert getattr(found, switch) == other
    assert getattr(found, switch) != getattr(profile("profile: compat\n"), switch)
    assert found.name == f"compat+{switch}"


@pytest.mark.parametrize(("cpus", "expected"), [(0.5, 1), (1, 1), (2, 2), (3.9, 3), (16, 4)])
def test_a_named_profile_asks_for_no_more_loader_processes_than_the_job_has_cores(
    cpus: float, expected: int
) -> None:
    text = f"profile: cuda-ampere\nresources: {{gpus: 1, cpus: {cpus}}}\n"
    job = parse_job((WORKLOAD + text).encode(), Path("job.yaml"))
    assert resolve_profile(job, "cuda").loader_workers == expected


def test_a_number_of_loader_processes_in_the_job_file_is_taken_as_it_is() -> None:
    assert profile("profile: {loader_workers: 5}\nresources: {cpus: 2}\n").loader_workers == 5


def test_a_profile_adds_variables_to_those_that_it_extends(tmp_path: Path) -> None:
    directory = write(
        tmp_path,
        base="environment: {ONE: a, TWO: b}\n",
        mine="extends: base\nenvironment: {TWO: c, THREE: d}\n",
    )
    found = load_profile("mine", directory)["environment"]
    assert found.value == {"ONE": "a", "TWO": "c", "THREE": "d"}
    assert found.place == "mine.yaml:2"
    choice = ProfileChoice(extends="mine", environment={"ONE": "job"})
    assert resolve_choice(choice, directory, "cpu").environment == {"ONE": "job", "TWO": "c", "THREE": "d"}


def test_a_variable_that_a_job_must_not_set_is_none_of_a_profile(tmp_path: Path) -> None:
    write(tmp_path, mine="environment: {LD_PRELOAD: x.so}\n")
    with pytest.raises(UsageError, match=r"mine\.yaml:1:15: environment\.LD_PRELOAD"):
        load_profile("mine", tmp_path)
