"""The life of a plug-in: built, installed beside the runner, used by jobs, and broken without harm.

The environment is one of its own: the plug-in must be found by its metadata, as after ``pip install``.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from images.store import ImageStore
from jobs.contract import RunPaths, checkpoints
from tests.fakes.daemon.service import until
from tests.fakes.patience import patience
from tests.fakes.workloads.counter_image import docker_client

pytestmark = pytest.mark.engine

PLUGIN: Final = Path(__file__).parents[2] / "examples" / "plugin"
SITE: Final = sysconfig.get_path("purelib")
UV: Final = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
STEPS: Final = 6000


@dataclass(frozen=True)
class Installation:
    """An environment with the runner of this checkout and the plug-in."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "venv" / "bin" / "python"

    def install(self, wheel: Path) -> None:
        subprocess.run(
            [UV, "pip", "install", "-q", "--offline", "--no-deps", "--python", self.python, wheel], check=True
        )

    @contextmanager
    def daemon(self, name: str, **settings: object) -> "Iterator[Daemon]":
        state = self.root / name
        state.mkdir()
        (state / "settings.yaml").write_text(json.dumps(settings))
        daemon = Daemon(self.python, state)
        try:
            yield daemon
        finally:
            daemon.runner("stop")
            daemon.remove_containers()


@dataclass(frozen=True)
class Daemon:
    """A daemon that the first command starts, in an environment that has the plug-in."""

    python: Path
    state: Path

    def runner(self, *arguments: str, code: int = 0) -> str:
        """Type a command, and return what it printed."""
        known = {"RUNNER_STATE_DIR": str(self.state), "RUNNER_SETTINGS": str(self.state / "settings.yaml")}
        others = {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}
        done = subprocess.run(
            [self.python, "-P", "-m", "runner.cli.main", *arguments],
            cwd=self.state,
            env=others | known,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience(),
        )
        assert done.returncode == code, (done.stdout, done.stderr, self.log())
        return done.stdout + done.stderr

    def log(self) -> str:
        file = self.state / "daemon.log"
        return file.read_text() if file.exists() else ""

    def submit(self, **fields: object) -> str:
        file = self.state / f"{fields['name']}.yaml"
        file.write_text(json.dumps(fields))
        assert self.runner("validate", str(file))
        return self.runner("submit", str(file)).split()[0]

    def containers(self, label: str) -> list[int]:
        with docker_client("unix:///var/run/docker.sock") as client:
            known = client.api.containers(filters={"label": [label]})
            mine = [each for each in known if any(str(self.state) in m["Source"] for m in each["Mounts"])]
            return [client.api.inspect_container(each["Id"])["State"]["Pid"] for each in mine]

    def remove_containers(self) -> None:
        for pid in self.containers("runner.job"):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def installed() -> Iterator[Installation]:
    """An environment with the plug-in, built from its sources without a network."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        venv.create(root / "venv", with_pip=False)
        [packages] = (root / "venv" / "lib").glob("*/site-packages")
        (packages / "runner.pth").write_text(f"import site; site.addsitedir({SITE!r})\n")
        sources = shutil.copytree(PLUGIN, root / "sources")
        subprocess.run([UV, "build", "-q", "--offline", "--wheel", "--out-dir", root, sources], check=True)
        made = Installation(root)
        made.install(next(root.glob("runner_series-*.whl")))
        yield made


def test_a_workload_of_a_plug_in_is_killed_and_resumed_in_a_container_without_a_changed_bit(
    installed: Installation, engine: str, base_image: str, tmp_path: Path
) -> None:
    assert engine
    assert base_image
    ImageStore().ensure("cpu", tmp_path / "log.txt")
    series = installed.root / "series.csv"
    series.write_text("".join(f"{math.sin(n / 7) + 0.3 * math.sin(n / 2.3)}\n" for n in range(2000)))
    workload = {"kind": "series_forecast", "data": str(series), "steps": STEPS, "eval_every": None}
    shared = {"workload": workload, "checkpoint": {"every_steps": 100}, "policy": "three-tries", "seed": 3}
    shared["retry"] = {"backoff": "0s"}
    with installed.daemon("containers", executor="docker", cpus=2) as daemon:
        job = daemon.submit(name="killed", **shared)
        paths = RunPaths(daemon.state / "jobs" / job, 1, 1)
        until(lambda: next(checkpoints(paths.lineage_dir), None), "a checkpoint", 300, more=daemon.log)
        [pid] = daemon.containers(f"runner.job={job}")
        os.kill(pid, signal.SIGKILL)
        quiet = daemon.submit(name="quiet", **shared)
        ends = [daemon.runner("wait", each) for each in (job, quiet)]
        first, second = (re.search("weights sha256 ([0-9a-f]{64})", end) for end in ends)
        assert first
        assert second
        assert first[1] == second[1]
        assert "resumed" in RunPaths(daemon.state / "jobs" / job, 2, 1).log.read_text()


def test_an_executor_and_a_channel_of_a_plug_in_run_and_tell(installed: Installation) -> None:
    told = installed.root / "told"
    rule = {"on": "succeeded", "channel": "file", "options": {"path": str(told)}}
    with installed.daemon("nice", executor="nice", cpus=1, notify=[rule]) as daemon:
        command = ["/bin/sh", "-c", "ps -o ni= -p $$"]
        job = daemon.submit(name="polite", workload={"kind": "program", "command": command})
        daemon.runner("wait", job)
        assert daemon.runner("logs", job).strip().endswith("19")
        until(told.exists, "the notification", more=daemon.log)
    assert "polite" in told.read_text()


def test_a_plug_in_that_cannot_be_loaded_is_told_and_harms_nobody(installed: Installation) -> None:
    sources = shutil.copytree(PLUGIN, installed.root / "broken")
    project = (sources / "pyproject.toml").read_text().replace("runner-series", "runner-torn")
    (sources / "pyproject.toml").write_text(
        re.sub(r"\n\[project.entry-points.*", "", project, flags=re.DOTALL)
        + '\n[project.entry-points."gpu_job_runner.workloads"]\ntorn = "runner_torn:Torn"\n'
    )
    (sources / "src" / "runner_series").rename(sources / "src" / "runner_torn")
    (sources / "src" / "runner_torn" / "__init__.py").write_text("import no_such_library\n")
    subprocess.run(
        [UV, "build", "-q", "--offline", "--wheel", "--out-dir", installed.root, sources], check=True
    )
    installed.install(next(installed.root.glob("runner_torn-*.whl")))
    line = "workloads: torn of runner-torn 1.0: ModuleNotFoundError: No module named 'no_such_library'"
    with installed.daemon("torn", executor="process", cpus=1) as daemon:
        file = daemon.state / "torn.yaml"
        file.write_text("name: x\nworkload: {kind: torn, data: .}\n")
        assert f'there is no workload "torn"; {line}' in daemon.runner("validate", str(file), code=2)
        job = daemon.submit(name="well", workload={"kind": "program", "command": ["/bin/true"]})
        daemon.runner("wait", job)
        [event] = [line for line in daemon.log().splitlines() if "plugin.broken" in line]
        assert json.loads(event)["distribution"] == "runner-torn 1.0"
        code = 4
        assert line in daemon.runner("doctor", code=code)
