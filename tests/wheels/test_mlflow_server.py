"""A training and a real MLflow server, both killed: 280 MB, so ``make test-mlflow``, not ``make test``."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from jobs.contract import RunPaths
from tests.fakes.daemon.ports import free_port
from tests.fakes.daemon.service import until
from tests.fakes.patience import patience
from tests.integration.process.jobs.test_tracking import TRAIN, environment, read

SERVER = Path(__file__).parents[2] / ".make/tools/mlflow/bin/python"
"""A Python with all of MLflow, which brings too much for the environment of the tests: pandas, SciPy."""


@contextmanager
def serving(directory: Path, port: int) -> Iterator[None]:
    """Run a real MLflow server with a database."""
    store = f"sqlite:///{directory}/mlflow.db"
    argv = [str(SERVER), "-m", "mlflow", "server", "--backend-store-uri", store, "--workers", "1"]
    environ = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with subprocess.Popen(
        [*argv, "--host", "127.0.0.1", "--port", str(port)],
        cwd=directory,
        env=environ,
        start_new_session=True,
    ) as process:
        try:
            until(lambda: is_up(port) or process.poll() is not None, "MLflow serves")
            assert process.poll() is None
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def is_up(port: int) -> bool:
    """Return True if the server answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=patience()) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_killed_training_and_a_killed_server_leave_no_doubled_and_no_missing_step(tmp_path: Path) -> None:
    port, argv = free_port(), [sys.executable, "-c", TRAIN]
    uri, first, second = f"http://127.0.0.1:{port}", RunPaths(tmp_path, 1, 1), RunPaths(tmp_path, 2, 1)
    with (
        serving(tmp_path, port),
        subprocess.Popen(
            [*argv, "20", "10"],
            env=environment(first, uri),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        until(lambda: [len(s.get("loss", ())) for _, s in read(uri)] == [10], "MLflow has the ten steps")
        os.killpg(process.pid, signal.SIGKILL)
    with subprocess.Popen([*argv, "20", "-1"], env=environment(second, uri), cwd=tmp_path) as process:
        until((second.attempt_dir / "metrics.jsonl").exists, "the second attempt trains without a server")
        with serving(tmp_path, port):
            assert process.wait(patience()) == 0
            [(about, steps)] = read(uri)
    assert steps == {"loss": list(range(1, 21))}
    assert about == {"status": "FINISHED", "name": "fit", "params": {"seed": "0"}}
