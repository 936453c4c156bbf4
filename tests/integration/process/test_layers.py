"""Modules that an import really loads, in an interpreter that has loaded nothing else.

import-linter reads import statements and ruff reads names; only this sees what comes along
through a third party, or through an import inside a function that runs at import time.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.cli.main import COMMANDS

ROOT = Path(__file__).parents[3]
Loaded = Callable[..., set[str]]
PYDANTIC = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
NOISE = ("_sysconfigdata", "_cython", "cython_runtime")  # made by C extensions and by sysconfig

FORKED = """
import json, os, sys

def loaded(modules):
    before = set(sys.modules)
    for module in modules:
        __import__(module)
    top = {name.partition(".")[0] for name in set(sys.modules) - before}
    return sorted(top - set(sys.stdlib_module_names))

for line in sys.stdin:
    answer, question = os.pipe()
    if not os.fork():
        os.write(question, json.dumps(loaded(json.loads(line))).encode())
        os._exit(0)
    os.close(question)
    with os.fdopen(answer) as pipe:
        print(pipe.read(), flush=True)
    os.wait()
"""
"""Answers each line with what importing its modules loads, in a fork that has imported nothing before."""


@pytest.fixture(scope="module", name="loaded")
def _loaded() -> Iterator[Loaded]:
    """Return the top-level packages beyond the standard library that importing modules loads."""
    argv = [sys.executable, "-c", FORKED]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdin is not None
        assert probe.stdout is not None
        questions, answers = probe.stdin, probe.stdout

        def ask(*modules: str) -> set[str]:
            print(json.dumps(modules), file=questions, flush=True)
            answer = answers.readline().strip()
            assert answer, f"{modules}: cannot be imported; the error is on standard error"
            return {name for name in json.loads(answer) if not name.startswith(NOISE)}

        yield ask
        questions.close()


def modules_of(package: str) -> list[str]:
    files = (ROOT / package).rglob("*.py")
    names = (path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in files)
    return sorted(name.removesuffix(".__init__") for name in names)


def test_the_core_loads_the_standard_library_alone(loaded: Loaded) -> None:
    assert loaded(*modules_of("runner/core"), "runner.base.errors") == {"runner"}


def test_the_client_loads_the_standard_library_alone(loaded: Loaded) -> None:
    assert loaded("runner.client.client", "runner.client.autostart", "runner.client.http") == {"runner"}


def test_what_users_import_loads_nothing_and_its_functions_the_standard_library_alone(loaded: Loaded) -> None:
    assert loaded("gpu_job_runner") == {"gpu_job_runner"}
    assert loaded("gpu_job_runner.function", "gpu_job_runner.submission") == {"gpu_job_runner", "runner"}


def test_the_command_line_loads_click_and_nothing_else_before_a_command_is_called(loaded: Loaded) -> None:
    commands = {place.partition(":")[0] for place in COMMANDS.values()}
    assert loaded("runner.cli.main", *sorted(commands)) == {"click", "runner"}


def test_the_contract_loads_pydantic_and_nothing_else(loaded: Loaded) -> None:
    assert loaded("jobs.contract") == {"jobs"} | PYDANTIC


def test_a_recipe_loads_nothing_of_the_engine(loaded: Loaded) -> None:
    assert loaded("images.recipe", "images.digest", "images.settings") == {"images"}


def test_the_spec_is_read_before_torch_is_loaded(loaded: Loaded) -> None:
    assert loaded("jobs.__main__") == {"gpu_job_runner", "jobs"} | PYDANTIC


def test_the_daemon_knows_no_adapter_and_no_third_party_behind_one(loaded: Loaded) -> None:
    assert not loaded("runner.control.loop") & {
        "docker",
        "fastapi",
        "pydantic",
        "pynvml",
        "jobs",
        "images",
        "torch",
    }


def test_a_daemon_loads_no_library_of_an_engine_before_it_has_one(loaded: Loaded) -> None:
    assert "docker" not in loaded("runner.server.main")


def test_images_stand_alone(loaded: Loaded) -> None:
    assert not loaded(*modules_of("images")) & {"click", "fastapi", "jobs", "pynvml", "runner", "torch"}


def test_the_host_never_loads_torch(loaded: Loaded) -> None:
    assert not loaded(*modules_of("runner"), *modules_of("images")) & {"numpy", "torch"}


OWNERS = {
    "docker": tuple(
        f"runner.adapters.docker.{name}"
        for name in (
            *("connection", "doctor", "engine", "events", "exec", "executor", "export"),
            *("image_links", "outbound"),
        )
    ),
    "pynvml": ("runner.adapters.doctor", "runner.adapters.gpu.nvidia"),
}


COMPOSED = {
    *(
        f"runner.server.{name}"
        for name in ("adapters", "composition", "doctor", "executors", "main", "plugins", "reload")
    ),
    *(
        f"runner.adapters.{name}"
        for name in ("host_torch", "image_locks", "slurm.containers", "slurm.images")
    ),
}
"""What joins adapters, and so loads what they load: NVML for the driver's version, the engine for images."""


def test_nobody_loads_a_third_party_but_its_adapter(loaded: Loaded) -> None:
    owners = {module for modules in OWNERS.values() for module in modules}
    others = set(modules_of("runner")) - owners - COMPOSED
    assert not loaded(*sorted(others)) & OWNERS.keys()


@pytest.mark.parametrize("third_party", OWNERS)
def test_an_adapter_loads_its_third_party_and_no_others(loaded: Loaded, third_party: str) -> None:
    assert loaded(*OWNERS[third_party]) & OWNERS.keys() == {third_party}


def test_the_trainer_runs_where_the_host_side_is_not_installed() -> None:
    absent = ("runner", "images", "docker", "pynvml", "click", "fastapi")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent})); import jobs.__main__, jobs.training.loop"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
