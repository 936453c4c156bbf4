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
        ("executer: docker", "executer: extra inputs are not permitted"),
        ("cpus: -1", "cpus: input should be greater than 0"),
        ("a: [", "is no YAML"),
        ("alarm: {below_percent: 101}", "alarm.below_percent: input should be less than or equal to 100"),
        ("alarm: {profiles: {compat: -1}}", "alarm.profiles.compat: input should be greater than or equal"),
        ("alarm: {window_s: 1}", "alarm.window_s: input should be greater than or equal to 10"),
        ("metrics: {listen: 9835}", "metrics.listen: input should be a valid string"),
        ("metrics: {listen: 'http://localhost:9835'}", "metrics.listen: string should match pattern"),
        ("- a", "input should be a valid dictionary"),
    ],
)
def test_a_wrong_one_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        load_settings(path)
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


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
