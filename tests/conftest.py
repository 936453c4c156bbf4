"""Fixtures of every test: an engine, a base image, a daemon of its own."""

import gc
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import docker
import hypothesis
import pytest
import structlog
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from images import bases
from images.docker_engine import DockerEngine
from images.log import BuildLog
from images.settings import ImageSettings
from runner.adapters.sqlite.store import SqliteStore
from tests.fakes.daemon.preloaded import PARENTS
from tests.fakes.patience import patience, slowness

TESTS: Final = Path(__file__).parent
LONGEST: Final = (
    "integration/test_gpu_report.py",
    "chaos/test_slurm_broken.py",
    "chaos/test_bitwise_processes.py",
    "integration/test_scripts.py",
    "contract/test_signals.py slurm-crun",
    "integration/test_compile.py",
    "chaos/test_slurm_resumed.py",
    "chaos/test_giving_way.py",
    "contract/test_signals.py slurm",
    "integration/test_program_containers.py",
    "integration/test_doctor.py",
    "chaos/test_slurm_nodes.py",
    "integration/test_root_by_descriptor.py",
    "chaos/test_daemon_killed.py",
    "chaos/test_checkpoints_damaged.py",
    "integration/test_slurm.py",
    "integration/test_end_to_end.py",
    "integration/test_policy_live.py",
    "chaos/test_bitwise_containers.py",
    "contract/test_signals.py docker",
    "integration/test_watching_live.py",
    "integration/test_images.py",
    "integration/test_lending_containers.py",
    "integration/test_initial_weights.py",
    "integration/test_examples.py",
    "contract/test_executor.py slurm-crun",
    "chaos/test_state_directory.py",
    "integration/test_devices.py",
    "integration/test_packages.py",
    "integration/test_applying_live.py",
    "chaos/test_engine_gone.py",
    "integration/test_torchrun.py",
    "integration/test_plugin.py",
    "contract/test_signals.py process",
    "integration/test_slurm_nodes.py",
    "integration/test_body_chain.py",
    "contract/test_executor.py slurm",
    "chaos/test_bitwise_chain.py",
    "chaos/test_attach_killed.py",
    "integration/test_reported.py",
    "chaos/test_sharing.py",
    "integration/test_network.py",
    "integration/test_programs.py",
    "integration/test_bench.py",
    "integration/test_scripted_days.py",
    "chaos/test_bitwise_stopped_early.py",
    "integration/test_first_line.py",
    "contract/test_executor.py",
    "chaos/test_fairness.py",
    "chaos/test_nothing_left.py",
    "integration/process/runner/dashboard/test_browser.py",
    "integration/process/runner/client/test_remote.py",
    "integration/process/jobs/test_distributed_programs.py",
    "integration/process/jobs/test_sharded.py",
    "integration/process/jobs/test_distributed.py",
    "integration/process/jobs/test_tracking.py",
    "integration/process/runner/server/test_api_fuzz.py",
    "integration/process/test_layers.py",
    "integration/process/jobs/test_attach.py",
    "integration/process/jobs/training/test_compilation.py",
    "unit/runner/core/scheduler/test_attained_properties.py",
    "unit/runner/control/test_scheduler.py",
    "unit/jobs/training/test_adaptive.py",
    "unit/runner/server/api/test_submissions.py",
    "unit/runner/server/api/test_rollouts.py",
    "unit/gpu_job_runner/integrations/test_huggingface.py",
)
"""What takes long, the longest first: files, or units of them. What begins last leaves other workers idle."""

WORLD: Final = re.compile(r"tests/contract/.*\[(process|docker|slurm-crun|slurm)\b")


def unit_of(nodeid: str) -> str:
    """Return what one worker runs: the file of a test, with its world in a suite that has several."""
    file = nodeid.partition("::")[0].removeprefix(f"{TESTS.name}/")
    world = WORLD.match(nodeid)
    return f"{file} {world[1]}" if world else file


class Units(LoadFileScheduling):
    """Give a worker the next unit when one test is left to it: more wait behind a long test."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Units | None:
    return Units(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what takes longest first, and scale the limits of tests to the machine."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}

    def rank(item: pytest.Item) -> int:
        unit = unit_of(item.nodeid)
        return ranks.get(unit, ranks.get(unit.partition(" ")[0], len(ranks)))

    items.sort(key=rank)
    usual_s = float(config.getini("timeout"))
    for item in items if config.getoption("timeout") is None else ():
        mark = item.get_closest_marker("timeout") or pytest.mark.timeout(usual_s).mark
        item.add_marker(pytest.mark.timeout(patience(mark.args[0])), append=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="write the texts that differ into the tests")


def pytest_configure(config: pytest.Config) -> None:
    """Leave out what costs seconds: looking for what may be freed while modules load, coloured tracebacks."""
    # A shell that runs the tests in the background ignores SIGINT, as nohup ignores SIGHUP, and so would each
    # command that they start.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    if config.getoption("--accept"):
        config.pluginmanager.import_plugin("tests.accept")
    slowness()  # before the workers of pytest-xdist are started, which inherit it
    gc.disable()
    hypothesis.settings.register_profile("no clock", deadline=None)  # a busy machine is no mistake
    hypothesis.settings.load_profile("no clock")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    )


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Let pytest remove what tests have nested thousands of directories deep: it fails there otherwise."""
    sys.setrecursionlimit(100_000)


NOT_TO_BE_INSTALLED: Final = (
    "only root",
    "there is a real driver",
    "this machine has a driver",
    "this engine can",
    "no device that torch can use",
    "cgroup v2",
    "address",  # of the newer protocol
)
"""Words of the reasons for which a test may be skipped under CI, too: no command of ours could help it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI, fail a test that is skipped because a part is not installed."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(words in reason for words in NOT_TO_BE_INSTALLED):
            report.outcome, report.longrepr = "failed", f"under CI nothing is missing. {reason}"
    return report


def engine_url() -> str:
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def engine_answers(url: str) -> bool:
    """Return True if an engine can be reached; a plain socket is asked first, for the SDK leaks one."""
    if url.startswith("unix://") and not _listens(url.removeprefix("unix://")):
        return False
    with closing(docker.DockerClient(url, version="auto")) as client:
        return bool(client.ping())


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


@pytest.fixture(scope="session")
def engine() -> str:
    """The engine's URL; without one, a laptop skips and CI fails."""
    url = engine_url()
    if not engine_answers(url):
        message = "no container engine answers; scripts/engine starts or installs one"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return url


SLURM_CONF: Final = "/run/runner-slurm/slurm.conf"
"""Of the cluster that ``scripts/slurm`` starts."""


@pytest.fixture(scope="session")
def slurm_conf() -> str:
    """The configuration of a small Slurm cluster; without one, a laptop skips and CI fails."""
    path = os.environ.get("SLURM_CONF") or SLURM_CONF
    if not _slurm_answers(path):
        message = "no Slurm answers; scripts/slurm, run by root, installs and starts one"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


def _slurm_answers(path: str) -> bool:
    if shutil.which("sinfo") is None or not os.access(Path(path).parent, os.W_OK):
        return False
    look, environment = ["sinfo", "--noheader", "--format=%D"], {**os.environ, "SLURM_CONF": path}
    return not subprocess.run(look, env=environment, capture_output=True, check=False).returncode


@pytest.fixture(scope="session", autouse=True)
def _parents() -> Iterator[None]:
    """End the processes from which others are forked."""
    with PARENTS:
        yield


@pytest.fixture(autouse=True)
def _closed_stores() -> Iterator[None]:
    """Close the stores that a test leaves open, as a daemon that is killed leaves its own."""
    opened: list[SqliteStore] = []
    open_store = SqliteStore._open

    def remember(store: SqliteStore) -> None:
        opened.append(store)
        open_store(store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "_open", remember)
        yield
    for store in opened:
        store.connections.close()


@pytest.fixture(autouse=True)
def _needs_engine(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("engine"):
        request.getfixturevalue("engine")


@pytest.fixture(scope="session")
def base_image(engine: str) -> str:
    """The id of an image with /bin/sh and python3: whatever the image builds stand on."""
    images = DockerEngine(engine)
    with BuildLog(Path(os.devnull)) as log:
        return bases.resolve(images, ImageSettings(engine_url=engine), log).id


HOSTILE_NAMES = ["plain", "two words", "quo'te\"s", "new\nline", "; echo gotcha", "$(id)", "-rf"]


@pytest.fixture(params=HOSTILE_NAMES)
def hostile_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory whose name breaks whoever builds commands out of text."""
    path: Path = tmp_path / request.param
    path.mkdir()
    return path


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB, to be filled."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)], check=True)
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)
