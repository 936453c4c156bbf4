"""Right to Debian packages."""

from pathlib import Path

import pytest

from runner.base import privileges
from runner.files.job.load import parse_job
from runner.files.job.model import JobFile
from runner.files.settings.model import Settings
from runner.files.settings.packages import PackagesSettings
from runner.services.submission.resolve import system_refusal


def job(system: str) -> JobFile:
    text = f"workload: {{kind: program, command: [python]}}\nimage: {{system: {system}}}\n"
    return parse_job(text.encode(), Path("job.yaml"))


def listed(*patterns: str) -> Settings:
    return Settings(packages=PackagesSettings(system=patterns))


def test_the_list_of_the_operator_may_have_patterns() -> None:
    settings = listed("libgl*", "ffmpeg")
    assert system_refusal(settings, job("[libgl1, ffmpeg=7:5.1]")) is None
    assert system_refusal(settings, job("[libgl1, sudo, ffmpeg2]")) == (
        "image.system (line 2): sudo, ffmpeg2: not on the list (libgl*, ffmpeg); "
        "the operator decides (packages.system in the settings)"
    )


def test_without_a_list_a_user_may_have_all_in_the_daemon_of_his_own_and_none_in_that_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(privileges, "acts_for_root", lambda: False)
    assert system_refusal(Settings(), job("[sudo]")) is None
    monkeypatch.setattr(privileges, "acts_for_root", lambda: True)
    assert "sudo: not on the list (none)" in str(system_refusal(Settings(), job("[sudo]")))
    assert system_refusal(Settings(system_wide=False), job("[sudo]")) is None
