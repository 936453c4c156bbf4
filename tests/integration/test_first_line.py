"""The first line of the README, on whatever Python, engine, image store and control groups a host has."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.fakes.daemon.service import RUNNER, Service, service
from tests.fakes.engine.wheel_folder import make_wheel
from tests.fakes.patience import patience

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

SCRIPT = "import bar, torch\nprint('bar', bar.VERSION, 'torch', torch.__version__, flush=True)\n"


@pytest.fixture
def own() -> Iterator[Service]:
    """The state directory of a user who has no daemon yet, beside a folder of wheels that is the index."""
    with service(executor="docker") as made:
        made.root.chmod(0o755)  # as the parents of a state directory are
        wheels = made.root / "wheels"
        wheels.mkdir()
        make_wheel(wheels, "bar", "1.0")
        packages = {"find_links": [str(wheels)], "no_index": True}
        made.settings_file.write_text(json.dumps({**made.settings, "packages": packages}))
        yield made


def test_a_script_beside_its_requirements_runs_with_them(own: Service) -> None:
    project = own.root / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("bar\n")
    (project / "train.py").write_text(SCRIPT)
    line = [*RUNNER, "run", "-c", "1", "-m", "2G", "--", "python", "train.py"]
    typed = subprocess.run(
        line, check=False, capture_output=True, text=True, cwd=project, env=own.environ, timeout=patience()
    )
    assert typed.returncode == 0, (typed, own.log_tail())
    assert "project-train: submitted as 1\n" in typed.stderr
    assert typed.stdout.startswith("bar 1.0 torch 2."), typed
