"""What importing a module really loads, in an interpreter of its own.

import-linter reads import statements and ruff reads names; only this sees what comes along
through a third party, or through an import inside a function that runs at import time.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PYDANTIC = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
NOISE = ("_sysconfigdata", "_cython", "cython_runtime")  # made by C extensions and by sysconfig

LOADED = """
import sys
before = set(sys.modules)
import {module}
top = {{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
import json
print(json.dumps(sorted(top)))
"""


def loaded(*modules: str) -> set[str]:
    """Return the top-level packages beyond the standard library that importing modules loads."""
    code = LOADED.format(module=", ".join(modules))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name for name in json.loads(done.stdout) if not name.startswith(NOISE)}


def modules_of(package: str) -> list[str]:
    files = (ROOT / package).rglob("*.py")
    names = (path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in files)
    return sorted(name.removesuffix(".__init__") for name in names)


def test_the_core_loads_the_standard_library_alone() -> None:
    assert loaded(*modules_of("runner/core"), "runner.base.errors") == {"runner"}


def test_the_client_loads_the_standard_library_alone() -> None:
    assert loaded("runner.client.client", "runner.client.autostart", "runner.client.http") == {"runner"}


def test_the_command_line_loads_click_and_nothing_else_before_a_command_is_called() -> None:
    commands = {place.partition(":")[0] for place in COMMANDS.values()}
    assert loaded("runner.cli.main", *sorted(commands)) == {"click", "runner"}


def test_the_contract_loads_pydantic_and_nothing_else() -> None:
    assert loaded("jobs.contract") == {"jobs"} | PYDANTIC


def test_a_recipe_loads_nothing_of_the_engine() -> None:
    assert loaded("images.recipe", "images.digest", "images.settings") == {"images"}


def test_the_spec_is_read_before_torch_is_loaded() -> None:
    assert loaded("jobs.__main__") == {"jobs"} | PYDANTIC


def test_the_daemon_knows_no_adapter_and_no_third_party_behind_one() -> None:
    assert not loaded("runner.control.loop") & {
        "docker",
        "fastapi",
        "pydantic",
        "pynvml",
        "jobs",
        "images",
        "torch",
    }


def test_a_daemon_loads_no_library_of_an_engine_before_it_has_one() -> None:
    assert "docker" not in loaded("runner.server.main")


def test_images_stand_alone() -> None:
    assert not loaded(*modules_of("images")) & {"click", "fastapi", "jobs", "pynvml", "runner", "torch"}


def test_the_host_never_loads_torch() -> None:
    assert not loaded(*modules_of("runner"), *modules_of("images")) & {"numpy", "torch"}


OWNERS = {"docker": "runner.adapters.docker.executor", "pynvml": "runner.adapters.gpu.nvidia"}


def test_nobody_loads_a_third_party_but_its_adapter() -> None:
    others = set(modules_of("runner")) - {*OWNERS.values(), "runner.server.main"}
    assert not loaded(*sorted(others)) & OWNERS.keys()


@pytest.mark.parametrize("third_party", OWNERS)
def test_an_adapter_loads_its_third_party_and_no_others(third_party: str) -> None:
    assert loaded(OWNERS[third_party]) & OWNERS.keys() == {third_party}


def test_the_trainer_runs_where_the_host_side_is_not_installed() -> None:
    absent = ("runner", "images", "docker", "pynvml", "click", "fastapi")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent})); import jobs.__main__, jobs.training.loop"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
