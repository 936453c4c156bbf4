import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from runner.base.errors import UsageError
from runner.files.settings.model import SYSTEM_SETTINGS, Alarm, Settings, load_settings, settings_path
from runner.server.composition import _site


def test_none_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("runner.files.settings.model.settings_path", lambda: tmp_path / "absent.yaml")
    monkeypatch.delenv("RUNNER_SETTINGS", raising=False)
    assert load_settings(None) == Settings()


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("executor: process\nroot_jobs_run_as: {uid: 7, gid: 8}\n")
    known = load_settings(path)
    assert (known.executor, known.root_jobs_run_as.uid) == ("process", 7)
    path.write_text("")
    assert load_settings(path) == Settings()


def _fields(model: type[BaseModel], section: str = "") -> Iterator[str]:
    """Yield the fields of settings that are sizes in bytes."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, f"{section}{name}.")
        elif "bytes" in name:
            yield f"{section}{name}"


def test_every_size_may_have_a_unit_as_in_job_files(tmp_path: Path) -> None:
    fields = [*_fields(Settings), "slurm.local.memory_bytes"]
    assert len(fields) >= 13
    for field in fields:
        section, _, name = field.rpartition(".")
        text = f"{name}: 1.5GiB" + ("}" if section else "")
        for part in reversed(section.split(".") if section else []):
            text = f"{part}: {{cpus: 1, {text}" if part == "local" else f"{part}: {{{text}"
        path = tmp_path / "settings.yaml"
        path.write_text(text + "}" * (text.count("{") - text.count("}")) + "\n")
        value: object = load_settings(path)
        for part in field.split("."):
            value = getattr(value, part)
        assert value == 1536 * 1024**2, field
        path.write_text(path.read_text().replace("1.5GiB", "64"))
        with pytest.raises(UsageError, match='64 would be so many bytes; did you mean "64GiB"'):
            load_settings(path)
        path.write_text(path.read_text().replace("64", "1.5 parsecs"))
        with pytest.raises(UsageError, match="must be a size such as"):
            load_settings(path)


def test_a_pipe_in_place_of_the_settings_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"pipe: is not a regular file$"):
        load_settings(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"seccomp profile: is not a regular file$"):
        Settings(seccomp=tmp_path / "pipe").seccomp_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("executer: docker", '1:1: executer: unknown field; did you mean "executor"?'),
        (
            "submission_bytes: 2000",
            "1:19: submission_bytes: must be a size of at least 1MiB, or null, not 2000",
        ),
        ("code_bytes: [1]", "1:13: code_bytes: must be a size of at least 1KiB, or null, not a list"),
        ("ram: 7", "1:1: ram: unknown field"),
        ("privileged: true", "1:1: privileged: unknown field"),
        ("cpus: -1", "1:7: cpus: must be a number greater than 0 and of at most 65536, or null, not -1"),
        (
            "cpus: 1.0e308",
            "1:7: cpus: must be a number greater than 0 and of at most 65536, or null, not 1.0e308",
        ),
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
            "1:19: metrics.listen: there is no port 99999; the highest is 65535",
        ),
        (
            "dashboard: {url: jobs.lab.example}",
            '1:18: dashboard.url: must be an http or https address, not "jobs.lab.example"',
        ),
        (
            "dashboard: {url: 'https://jobs.lab.example/jobs?all=1'}",
            (
                "1:18: dashboard.url: must end after the name and the port; pages begin at /, not"
                ' "https://jobs.lab.example/jobs?all=1"'
            ),
        ),
        (
            "dashboard: {url: 'https://ann:secret@jobs.lab.example'}",
            "1:18: dashboard.url: must have no user and password; everybody who is notified reads it",
        ),
        ("notify: {on: failed}", "1:9: notify: must be a list, not a mapping"),
        ("ca_file: 7", "1:10: ca_file: must be text, or null, not 7"),
        (
            "system_wide: yes",
            '1:14: system_wide: must be true or false, or null, not "yes"; did you mean true?',
        ),
        (
            "allowed_images: {all: '*'}",
            (
                "1:23: allowed_images.all: must name the registry or the owner before the *, such as"
                ' nvcr.io/nvidia/*, not "*"'
            ),
        ),
        ("- a", '1:1: must consist of "field: value" lines, not a list'),
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
        '1:16: queue.order: must be one of "fair", "attained", "fifo", "priority" or "sjf", not "foo"',
        '1:21: queue.backfil: unknown field; did you mean "backfill"?',
        '2:7: cpus: must be a number greater than 0 and of at most 65536, or null, not "x"',
    ]


def test_limits_for_profiles_that_do_not_exist_are_told_with_a_guess() -> None:
    alarm = Alarm(profiles={"compat": 1, "cuda+threads": 2, "baselin": 3, "own": 4})
    only = "the entry applies only to jobs whose own profile has this name"
    guess, list_ = Settings(alarm=alarm).strangers()
    assert guess == f'alarm.profiles: there is no profile "baselin"; did you mean "baseline"?; {only}'
    assert list_.startswith('alarm.profiles: there is no profile "own"; choose one of ')
    assert list_.endswith(f"; {only}")


def test_a_program_that_cannot_be_started_is_told_with_the_place_of_its_rule(tmp_path: Path) -> None:
    for name, mode in (("fit", 0o755), ("unfit", 0o644)):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    rules = [{"on": "held", "command": [str(tmp_path / name)]} for name in ("fit", "unfit", "absent", "")]
    settings = Settings.model_validate({"notify": [*rules, {"on": "held", "webhook": "http://example.org"}]})
    no_program = "is not a program that the daemon may execute; nothing is sent"
    assert list(settings.strangers()) == [
        f"notify[1].command: {tmp_path}/unfit {no_program}",
        f"notify[2].command: {tmp_path}/absent does not exist; nothing is sent",
        f"notify[3].command: {tmp_path} {no_program}",
    ]


def test_a_machine_that_takes_no_mail_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.files.settings.notify.SENDMAIL", f"{tmp_path}/sendmail")
    settings = Settings.model_validate({"notify": [{"on": "held", "mail": "ops"}]})
    assert list(settings.strangers()) == [
        f"notify[0].mail: {tmp_path}/sendmail does not exist; nothing is sent"
    ]


def test_what_does_not_exist_is_told_in_the_log_when_the_daemon_starts(tmp_path: Path) -> None:
    rule = {"on": "held", "command": [f"{tmp_path}/absent"]}
    settings = Settings.model_validate({"notify": [rule], "alarm": {"profiles": {"baselin": 3}}})
    with capture_logs() as lines:
        _site(settings)
    assert [(each["event"], each["problem"]) for each in lines] == [
        ("settings.unknown_name", problem) for problem in settings.strangers()
    ]
    assert len(lines) == 2


def test_paths_are_written_as_text(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("ca_file: /etc/ssl/site.pem\n")
    assert load_settings(path).ca_file == Path("/etc/ssl/site.pem")


def test_the_dashboard_may_be_said_with_a_slash(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("dashboard: {url: https://jobs.lab.example:8443/}\n")
    assert load_settings(path).dashboard.url == "https://jobs.lab.example:8443"


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
