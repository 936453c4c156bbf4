"""Names that programs import, and folders of users that bear those of the daemon's packages."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def run(directory: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run a script of a user's directory, as the installed packages are found: after that directory."""
    (directory / "train.py").write_text(source)
    command = [sys.executable, "train.py"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a directory with packages of the user's own, called as those of the daemon."""
    for name in ("jobs", "runner", "images"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"mine = {name!r}\n")
    return tmp_path


def test_folders_of_a_user_hide_nothing_of_what_programs_import(own: Path) -> None:
    done = run(
        own,
        "import jobs, runner, images\n"
        "from gpu_job_runner.attach import attach\n"
        "import gpu_job_runner.tracking, gpu_job_runner.integrations\n"
        "with attach(lambda d: (d / 'a').write_text(''), lambda d: None) as job:\n"
        "    print(list(job.steps(2)), jobs.mine, runner.mine, images.mine)\n",
    )
    assert done.stdout == "[0, 1] jobs runner images\n", done.stderr


def test_a_folder_that_hides_the_client_is_named(own: Path) -> None:
    done = run(own, "import gpu_job_runner\ngpu_job_runner.submit(['true'])\n")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {own}/runner/__init__.py: hides the package runner of gpu-job-runner from this "
        "program; rename that folder, or start Python with -P"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("jobs.attach import attach_states", "gpu_job_runner.attach"),
        ("jobs.integrations import lightning", "gpu_job_runner.integrations"),
    ],
)
def test_an_old_name_works_and_says_the_new_one(tmp_path: Path, old: str, new: str) -> None:
    module = old.partition(" ")[0]
    done = run(tmp_path, f"import sys\ntry:\n    from {old}\nexcept ImportError:\n    raise\nprint('well')\n")
    assert done.stdout == "well\n", done.stderr
    assert f"DeprecationWarning: {module} is called {new} since version 0.1" in done.stderr
