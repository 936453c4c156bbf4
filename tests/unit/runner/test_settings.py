from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.settings import SYSTEM_SETTINGS, Settings, load_settings, settings_path


def test_none_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("runner.settings.settings_path", lambda: tmp_path / "absent.yaml")
    monkeypatch.delenv("RUNNER_SETTINGS", raising=False)
    assert load_settings(None) == Settings()


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("executor: process\nroot_jobs_run_as: {uid: 7, gid: 8}\n")
    known = load_settings(path)
    assert (known.executor, known.root_jobs_run_as.uid) == ("process", 7)
    path.write_text("")
    assert load_settings(path) == Settings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("executer: docker", '1:1: executer: unknown field; did you mean "executor"?'),
        ("ram: 7", "1:1: ram: unknown field"),
        ("privileged: true", "1:1: privileged: unknown field"),
        ("cpus: -1", "1:7: cpus: must be a number greater than 0, or null, not -1"),
        ("a: [", "2:1: not valid YAML: a value or a closing bracket is missing here"),
        (
            "alarm: {below_percent: 101}",
            "1:24: alarm.below_percent: must be a number from 0 to 100, not 101",
        ),
        (
            "alarm: {profiles: {compat: -1}}",
            "1:28: alarm.profiles.compat: must be a number from 0 to 100, not -1",
        ),
        ("alarm: {window_s: 1}", "1:19: alarm.window_s: must be a number from 10 to 86400, not 1"),
        (
            "metrics: {listen: 9835}",
            "1:19: metrics.listen: must be text, or null, not 9835; put it in quotes",
        ),
        (
            "metrics: {listen: 'http://localhost:9835'}",
            '1:19: metrics.listen: must be host:port such as 127.0.0.1:9835, not "http://localhost:9835"',
        ),
        (
            "metrics: {listen: '0.0.0.0:99999'}",
            "1:19: metrics.listen: there is no port 99999; they go up to 65535",
        ),
        ("notify: {on: failed}", "1:1: notify: must be a list, not a mapping"),
        ("ca_file: 7", "1:10: ca_file: must be text, or null, not 7"),
        (
            "system_wide: yes",
            '1:14: system_wide: must be true or false, or null, not "yes"; did you mean true?',
        ),
        ("- a", '1:1: must be "field: value" lines, not a list'),
    ],
)
def test_a_wrong_one_is_refused_with_its_place_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        load_settings(path)
    assert str(refused.value) == f"{path}:{words}"


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("queue: {order: foo, backfil: true}\ncpus: x\n")
    with pytest.raises(UsageError) as refused:
        load_settings(path)
    assert [line.removeprefix(f"{path}:") for line in str(refused.value).splitlines()] == [
        '1:16: queue.order: must be one of "fair", "fifo", "priority" or "sjf", not "foo"',
        '1:21: queue.backfil: unknown field; did you mean "backfill"?',
        '2:7: cpus: must be a number greater than 0, or null, not "x"',
    ]


def test_paths_are_written_as_text(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("ca_file: /etc/ssl/site.pem\n")
    assert load_settings(path).ca_file == Path("/etc/ssl/site.pem")


@pytest.mark.parametrize("listen", ["127.0.0.1:9835", "[::1]:9835", "gpu-1.example.org:80"])
def test_figures_may_be_given_anywhere(tmp_path: Path, listen: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(f'metrics: {{listen: "{listen}"}}')
    assert load_settings(path).metrics.listen == listen


def test_a_named_file_must_be_there_and_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no such settings file"):
        load_settings(tmp_path / "absent.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        load_settings(tmp_path)
    monkeypatch.setenv("RUNNER_SETTINGS", str(tmp_path / "absent.yaml"))
    with pytest.raises(UsageError, match="no such settings file"):
        load_settings(None)


def test_where_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_SETTINGS", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert settings_path() == SYSTEM_SETTINGS
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/ann/.config")
    assert settings_path() == Path("/home/ann/.config/runner/settings.yaml")


def test_a_seccomp_profile_is_given_as_text(tmp_path: Path) -> None:
    profile = tmp_path / "seccomp.json"
    profile.write_text("{}")
    assert Settings(seccomp=profile).seccomp_text() == "{}"
    assert Settings().seccomp_text() is None
    with pytest.raises(UsageError, match="seccomp profile"):
        Settings(seccomp=tmp_path / "absent.json").seccomp_text()
