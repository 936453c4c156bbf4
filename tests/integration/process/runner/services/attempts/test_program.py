import subprocess
from pathlib import Path

from runner.adapters.launch import entry_script


def test_the_log_is_open_before_anything_can_go_wrong(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    command = entry_script(tmp_path / "gone", log, ("true",))
    assert subprocess.run(command, check=False).returncode == 126
    assert "gone" in log.read_text()
