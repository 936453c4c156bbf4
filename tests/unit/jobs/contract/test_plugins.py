"""Plug-ins are found by the metadata of their distributions; a broken one is told and left out."""

import os
import sys
from pathlib import Path

import pytest

from jobs.contract.plans import checked_plan
from jobs.contract.plugins import PluginRegistry, load_plugins, plugin_names, plugin_of_type

PLAN = """
from typing import ClassVar, Literal
from pydantic import Field
from jobs.contract import CheckpointFields, TrainingPlan
class Plan(TrainingPlan):
    implementation: ClassVar = "x:Y"
    checkpoint_fields: ClassVar = CheckpointFields(shape=("width",))
    benchmark: ClassVar = {}
    kind: Literal["mine"] = "mine"
    width: int = 1
"""


@pytest.fixture(name="site")
def _site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def install(site: Path, value: str, code: str, group: str = "workloads", name: str = "mine") -> Path:
    """Install a plug-in of one module into a directory of the path."""
    module = value.partition(":")[0]
    sys.modules.pop(module, None)
    (site / f"{module}.py").write_text(code)
    about = site / f"the_{module}-2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: the-{module}\nVersion: 2.0\n")
    (about / "entry_points.txt").write_text(f"[gpu_job_runner.{group}]\n{name} = {value}\n")
    return site / f"{module}.py"


def loaded() -> PluginRegistry[int]:
    return load_plugins(
        "workloads", {"first": "tests.unit.jobs.contract.test_plugins:OWN"}, plugin_of_type(int)
    )


OWN = 1


def test_a_plug_in_is_found_beside_the_runners_own_with_what_an_image_needs(site: Path) -> None:
    file = install(site, "right:NUMBER", "NUMBER = 5\n")
    known = loaded()
    assert known.found == {"first": 1, "mine": 5}
    [plugin] = known.plugins
    assert (plugin.distribution, plugin.package) == ("the-right 2.0", file)
    assert set(plugin.metadata) == {f"the_right-2.0.dist-info/{n}" for n in ("METADATA", "entry_points.txt")}
    assert not known.broken
    assert not known.why_not("mine")
    assert plugin_names("workloads") == ("mine",)
    assert plugin_names("channels") == ()


def test_the_package_of_a_plug_in_is_its_directory(site: Path) -> None:
    (site / "deep").mkdir()
    (site / "deep" / "__init__.py").write_text("")
    (site / "deep" / "below.py").write_text("NUMBER = 5\n")
    install(site, "unused:X", "", group="policies")
    (site / "the_unused-2.0.dist-info" / "entry_points.txt").write_text(
        "[gpu_job_runner.workloads]\nmine = deep.below:NUMBER\n"
    )
    [plugin] = loaded().plugins
    assert plugin.package == site / "deep"


@pytest.mark.parametrize(
    ("value", "code", "error"),
    [
        ("torn:X", "import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("torn:X", "raise SystemExit('two\\nlines')", "SystemExit: two lines"),
        ("torn:X", "Y = 1", "AttributeError: module 'torn' has no attribute 'X'"),
        ("torn:X", "X = 'five'", "TypeError: is a str, and must be a int"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_told_in_one_line(
    site: Path, value: str, code: str, error: str
) -> None:
    install(site, value, code)
    known = loaded()
    assert known.found == {"first": 1}
    [broken] = known.broken
    assert str(broken) == f"workloads: mine of the-torn 2.0: {error}"
    assert known.why_not("mine") == f"; {broken}"


def test_a_plug_in_without_its_package_is_told(site: Path) -> None:
    install(site, "lost:X", "").unlink()
    assert loaded().broken[0].error == "ImportError: there is no package lost"


def test_a_name_is_not_taken_twice(site: Path) -> None:
    install(site, "second:X", "X = 2", name="first")
    known = loaded()
    assert known.found == {"first": 1}
    assert known.broken[0].error == "ValueError: the name is taken; rename it"


def test_a_plug_in_that_loads_torch_where_a_daemon_starts_is_left_out(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    install(site, "heavy:X", "import sys\nsys.modules['torch'] = sys\nX = 2")
    assert "imports torch, which a daemon must not load" in loaded().broken[0].error
    monkeypatch.delitem(sys.modules, "torch")


def test_code_that_others_may_write_to_is_not_imported(site: Path) -> None:
    file = install(site, "open_to_all:X", "import open_to_all_was_imported")
    file.chmod(0o666)
    assert loaded().broken[0].error.startswith(f"ValueError: {file} may be changed by other users")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_code_of_another_user_is_not_imported(site: Path) -> None:
    file = install(site, "of_ann:X", "X = 2")
    os.chown(file, 65534, 65534)
    assert loaded().broken[0].error.startswith(f"ValueError: {file} may be changed by other users")


def made(code: str) -> object:
    space: dict[str, object] = {"__name__": "made"}
    exec(code, space)  # noqa: S102  (a plan as a plug-in has it)
    return space["Plan"]


def test_a_plan_says_all_that_the_rest_derives_from_it() -> None:
    assert checked_plan("mine", made(PLAN))


@pytest.mark.parametrize(
    ("name", "before", "after", "error"),
    [
        ("yours", "", "", 'its kind must be Literal["yours"], as its entry point is called'),
        ("program", "", "", "the name is taken; rename it"),
        ("mine", "    benchmark: ClassVar = {}\n", "", "lacks the class variables benchmark"),
        ("mine", '("width",)', '("depth",)', "each field of its own once: depth, width"),
        ("mine", '("width",)', '("width", "width")', "each field of its own once: width"),
        ("mine", '    kind: Literal["mine"] = "mine"\n', "", "its kind must be"),
    ],
)
def test_a_plan_that_leaves_something_open_is_refused(name: str, before: str, after: str, error: str) -> None:
    with pytest.raises(ValueError, match=error.replace("[", r"\[").replace("]", r"\]")):
        checked_plan(name, made(PLAN.replace(before, after)))


@pytest.mark.parametrize("value", [5, int])
def test_what_is_no_plan_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="must be a class that inherits from TrainingPlan"):
        checked_plan("mine", value)
