import json

import pytest
import yaml
from click.shell_completion import BashComplete

from jobs.contract import SWITCHES, profiles_dir
from runner.cli.main import cli
from runner.files.profiles.load import profile_names
from tests.unit.runner.cli.conftest import Invoke

NAMES = profile_names(profiles_dir())


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_list_names_every_profile_with_what_it_extends_and_what_it_is_for(invoke: Invoke) -> None:
    found = {name: (extends, text) for name, extends, text in rows(invoke("profiles", "list").stdout)}
    assert tuple(found) == NAMES
    assert found["cuda-hopper"][0] == "cuda-ampere,cuda,compat"
    assert found["compat"][0] == "-"
    assert all(len(text) > 20 for _, text in found.values())


def test_list_prints_one_object_for_each_profile(invoke: Invoke) -> None:
    found = [json.loads(line) for line in invoke("profiles", "list", "--json").stdout.splitlines()]
    assert [one["name"] for one in found] == list(NAMES)
    assert {"name", "extends", "for"} == set(found[0])


@pytest.mark.parametrize("name", NAMES)
def test_show_prints_every_switch_as_a_job_file_would_say_it(invoke: Invoke, name: str) -> None:
    shown = rows(invoke("profiles", "show", name).stdout)
    assert [switch for switch, _ in shown if switch != "environment"] == list(SWITCHES)
    settings = json.loads(invoke("profiles", "show", name, "--json").stdout)["switches"]
    for switch, value in shown:
        assert value == settings[switch] or yaml.safe_load(value) == settings[switch]


def test_show_explains_where_a_value_comes_from_and_why(invoke: Invoke) -> None:
    shown = {row[0]: row[1:] for row in rows(invoke("profiles", "show", "cuda-ampere", "--explain").stdout)}
    value, place, reason = shown["precision"]
    assert (value, place.partition(":")[0]) == ("bf16", "cuda-ampere.yaml")
    assert "scaler" in reason
    line = int(place.partition(":")[2])
    text = (profiles_dir() / "cuda-ampere.yaml").read_text().splitlines()[line - 1]
    assert text.startswith("precision: bf16")
    assert shown["attention"][1].startswith("compat.yaml:")


def test_the_explanation_is_in_the_json_too(invoke: Invoke) -> None:
    found = json.loads(invoke("profiles", "show", "cpu", "--explain", "--json").stdout)
    assert found["explained"]["optimizer"]["profile"] == "cpu"
    assert found["explained"]["optimizer"]["value"] == "fused" == found["switches"]["optimizer"]


def test_diff_prints_the_switches_that_differ_and_no_others(invoke: Invoke) -> None:
    shown = {switch: (a, b) for switch, a, b in rows(invoke("profiles", "diff", "cpu", "baseline").stdout)}
    assert shown["attention"] == ("fused", "rebuilt_mask")
    assert shown["shared_targets"] == ("true", "false")
    assert "precision" not in shown
    found = json.loads(invoke("profiles", "diff", "cpu", "baseline", "--json").stdout)
    assert set(found["switches"]) == set(shown)
    assert found["switches"]["stream_buffer"] == ["auto", 1]


def test_a_profile_does_not_differ_from_itself(invoke: Invoke) -> None:
    result = invoke("profiles", "diff", "cpu", "cpu")
    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize("args", [("show", "cdua"), ("diff", "cdua", "cpu"), ("diff", "cpu", "cdua")])
def test_a_name_that_is_misspelt_is_a_usage_error_with_a_guess(invoke: Invoke, args: tuple[str, ...]) -> None:
    result = invoke("profiles", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == 'there is no profile "cdua"; did you mean "cuda"?\n'


def test_a_name_like_no_other_is_answered_with_all_of_them(invoke: Invoke) -> None:
    assert "; choose one of baseline, compat, cpu," in invoke("profiles", "show", "zzz").stderr


def test_auto_is_not_one_profile(invoke: Invoke) -> None:
    result = invoke("profiles", "show", "auto")
    assert (result.exit_code, result.stderr) == (
        2,
        "auto is cpu, cuda, rocm, whichever the job gets; choose one of them\n",
    )


def test_names_complete() -> None:
    found = BashComplete(cli, {}, "runner", "_RUNNER_COMPLETE").get_completions(["profiles", "show"], "cuda-")
    assert [item.value for item in found] == ["cuda-24gb", "cuda-ampere", "cuda-hopper"]
