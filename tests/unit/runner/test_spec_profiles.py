from pathlib import Path

import pytest

from jobs.contract import Profile, profiles_dir
from runner import spec
from runner.errors import UsageError
from runner.spec_profiles import ProfileChoice, profile_names, resolve

WORKLOAD = "workload: {kind: causal_lm, data: stdlib}\n"


def profile(text: str) -> Profile:
    return spec.resolve_profile(spec.load((WORKLOAD + text).encode(), Path("job.yaml")))


def write(directory: Path, **profiles: str) -> Path:
    for name, text in profiles.items():
        (directory / f"{name}.yaml").write_text(text)
    return directory


def test_the_profile_of_an_ordinary_job_is_the_baseline() -> None:
    assert profile("") == Profile(name="baseline")


@pytest.mark.parametrize("name", profile_names(profiles_dir()))
def test_a_shipped_profile_is_valid_and_gives_a_reason_for_every_value(name: str) -> None:
    assert profile(f"profile: {name}\n").name == name
    lines = (profiles_dir() / f"{name}.yaml").read_text().splitlines()
    assert [line for line in lines if "#" not in line and not line.startswith("extends: ")] == []


def test_the_baseline_says_every_field() -> None:
    text = (profiles_dir() / "baseline.yaml").read_text()
    assert [field for field in Profile.model_fields if field != "name" and f"{field}: " not in text] == []


def test_a_job_can_change_a_profile_and_the_name_tells_what() -> None:
    found = profile("profile: {extends: cpu, threads: 2, compile: true}\n")
    assert (found.name, found.threads, found.compile) == ("cpu+compile+threads", 2, True)
    assert found.fused_optimizer is profile("profile: cpu\n").fused_optimizer


def test_a_job_can_give_its_changes_a_name() -> None:
    assert profile("profile: {name: mine, threads: 2}\n").name == "mine"


def test_a_change_can_set_a_field_back_to_null(tmp_path: Path) -> None:
    profiles = write(tmp_path, small="micro_batch: 4\n")
    choice = ProfileChoice(extends="small", micro_batch=None)
    assert resolve(ProfileChoice(extends="small"), profiles).micro_batch == 4
    assert resolve(choice, profiles).micro_batch is None


def test_a_profile_may_extend_one_that_extends_another(tmp_path: Path) -> None:
    profiles = write(
        tmp_path, a="threads: 1\nprecision: bf16\n", b="extends: a\nthreads: 2\n", c="extends: b\n"
    )
    found = resolve(ProfileChoice(extends="c"), profiles)
    assert (found.threads, found.precision) == (2, "bf16")


def test_profiles_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    profiles = write(tmp_path, a="extends: b\n", b="extends: a\n")
    with pytest.raises(UsageError, match=r'profile "a" extends itself: a -> b -> a'):
        resolve(ProfileChoice(extends="a"), profiles)


def test_a_profile_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='there is no profile "a" in '):
        resolve(ProfileChoice(extends="a"), tmp_path)


def test_a_mistake_in_a_profile_file_is_shown_with_its_place(tmp_path: Path) -> None:
    profiles = write(tmp_path, a="# mine\nthread: 1\nprecision: half\n")
    with pytest.raises(UsageError) as caught:
        resolve(ProfileChoice(extends="a"), profiles)
    assert str(caught.value).splitlines() == [
        f'{tmp_path}/a.yaml:2:1: thread: unknown field; did you mean "threads"?',
        f'{tmp_path}/a.yaml:3:12: precision: must be one of "fp32", "tf32" or "bf16", not "half"',
    ]


def test_only_yaml_files_with_plain_names_are_profiles(tmp_path: Path) -> None:
    write(tmp_path, good="threads: 1\n", **{".hidden": "", "with space": ""})
    (tmp_path / "README.md").write_text("")
    assert profile_names(tmp_path) == ("good",)
