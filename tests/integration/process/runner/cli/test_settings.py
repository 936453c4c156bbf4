"""``runner settings`` and ``runner prune`` with a daemon of processes: check, reload, SIGHUP, retention."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from runner.base.errors import Unavailable
from runner.cli.settings import settings
from tests.fakes.daemon.service import RUNNER, Service, service, until
from tests.fakes.host.users import with_uid

BOB = 4321


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


def say(daemon: Service, **settings: object) -> None:
    """Write the settings file of a daemon anew."""
    daemon.settings_file.write_text(json.dumps({**daemon.settings, **settings}))


def test_a_file_with_mistakes_is_refused_with_their_places(daemon: Service, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("cpus: -1\nnetwrok: none\n")
    said = daemon.runner("settings", "check", str(path), code=2)
    assert f"{path}:1:7: cpus: must be a number greater than 0" in said
    assert f'{path}:2:1: netwrok: unknown field; did you mean "network"?' in said
    answer = json.loads(daemon.runner("settings", "check", "--json", str(path), code=2))
    assert len(answer["problems"]) == 2


def test_a_valid_file_is_shown_with_warnings(daemon: Service, tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text("cpus: 2\nqueue: {user_quotas: {no-such-user: {jobs: 1}}}\n")
    said = daemon.runner("settings", "check", str(path))
    assert "cpus: 2.0" in said
    assert 'queue: {"user_quotas": {"no-such-user": {"jobs": 1}}}' in said
    assert 'warning: queue.user_quotas: this machine has no user "no-such-user"' in said
    answer = json.loads(daemon.runner("settings", "check", "--json", str(path)).splitlines()[-1])
    assert (answer["problems"], len(answer["warnings"])) == ([], 1)


def test_without_a_file_the_defaults_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    absent = tmp_path / "absent.yaml"
    monkeypatch.delenv("RUNNER_SETTINGS", raising=False)
    monkeypatch.setattr("runner.files.settings.model.settings_path", lambda: absent)
    result = CliRunner().invoke(settings, ["check"])
    assert (result.exit_code, result.output) == (
        0,
        f"{absent}: does not exist; all settings have their defaults\n",
    )


def test_packages_that_are_all_allowed_are_written_as_a_pattern(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("packages: {system: all}\n")
    result = CliRunner().invoke(settings, ["check", str(file)])
    assert result.exit_code == 2
    assert (
        f'{file}:1:20: packages.system: must be a list of packages; ["*"] allows all of them' in result.output
    )


def test_a_reload_puts_in_force_what_may_change_and_names_the_rest(daemon: Service) -> None:
    say(daemon, queue={"user_quota": {"queued": 0}}, cpus=3)
    answer = json.loads(daemon.runner("settings", "reload", "--json"))
    file = str(daemon.settings_file)
    assert answer == {"changed": ["queue"], "needs_restart": ["cpus"], "file": file}
    job = daemon.file("late", workload={"kind": "program", "command": ["true"]})
    assert "may have 0 jobs waiting" in daemon.runner("submit", str(job), code=3)
    say(daemon)
    assert f"{file}: in force now: queue" in daemon.runner("settings", "reload")


@pytest.mark.parametrize("command", [("prune",), ("settings", "reload")])
def test_without_a_daemon_it_is_said_how_to_start_one(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [*RUNNER, *command],
        env={**os.environ, "RUNNER_STATE_DIR": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Unavailable.exit_code
    assert "no daemon answers" in done.stderr
    assert "systemctl start runner; your own with: runner list" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_hangup_reloads_and_a_mistake_in_the_file_changes_nothing(daemon: Service) -> None:
    pid = daemon.daemon_pid()
    say(daemon, submission_bytes=2 * 1024**2)
    os.kill(pid, signal.SIGHUP)
    until(lambda: '"changed":["submission_bytes"]' in daemon.daemon_log(), "it has reloaded")
    daemon.settings_file.write_text("cpus: -1\n")
    os.kill(pid, signal.SIGHUP)
    until(lambda: "settings.not_reloaded" in daemon.daemon_log(), "the mistake is in the log")
    assert "cpus: must be a number greater than 0" in daemon.daemon_log()
    assert daemon.daemon_pid() == pid
    say(daemon)
    daemon.runner("settings", "reload")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_only_operators_reload_and_prune(daemon: Service) -> None:
    for path in ("/v1/settings/reload", "/v1/prune"):
        code, answer = with_uid(BOB, partial(daemon.client.post, path, {}))
        assert code == 3, answer
        assert "only root and the daemon's own user may" in str(answer)


def test_prune_removes_old_directories_and_never_one_of_a_job_that_runs(daemon: Service) -> None:
    assert "the settings have no limits" in daemon.runner("prune")
    old = daemon.submit(daemon.file("old", workload={"kind": "program", "command": ["true"]}))
    new = daemon.submit(daemon.file("new", workload={"kind": "program", "command": ["true"]}))
    runs = daemon.submit(
        daemon.file("runs", workload={"kind": "program", "command": ["sleep", "600"]}, stop_grace="1s"),
        end="cancelled",
    )
    daemon.reaches(runs, "running")
    for job_id in (old, new):
        daemon.ends(job_id)
    say(daemon, retention={"count_per_user": 0})
    daemon.runner("settings", "reload")
    assert daemon.runner("prune", "--dry-run").startswith("nothing to remove")  # they have just ended
    daemon.client.stop()
    until(lambda: daemon.pid() is None, "the daemon is gone")
    daemon._reap()
    _end_earlier(daemon, old)
    daemon.start()
    until(lambda: not (daemon.state / "jobs" / old).exists(), "the old directory is removed at the start")
    assert (daemon.state / "jobs" / new).exists()
    assert (daemon.state / "jobs" / runs).exists()
    until(lambda: "may have 0 run directories" in daemon.daemon_log(), "the log tells why")
    assert json.loads(daemon.runner("prune", "--json")) == {"removed": [], "unlimited": False}
    assert daemon.job(old)["outcome"] == "succeeded"
    daemon.runner("cancel", runs)
    daemon.ends(runs)


def _end_earlier(daemon: Service, job_id: str) -> None:
    """Let a job have ended two hours ago, as the store knows it."""
    import sqlite3
    from contextlib import closing

    earlier = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - 7200))
    with closing(sqlite3.connect(daemon.state / "store.db")) as store, store:
        [(text,)] = store.execute("SELECT job FROM jobs WHERE id = ?", (job_id,)).fetchall()
        job = json.loads(text)
        job["state"]["since"] = earlier
        store.execute("UPDATE jobs SET job = ? WHERE id = ?", (json.dumps(job), job_id))
