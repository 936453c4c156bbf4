"""Programs that need next to nothing, and are tried once."""

from pathlib import Path
from typing import Any

from tests.fakes.daemon.service import Service


def program(daemon: Service, name: str, command: list[str], **fields: Any) -> Path:
    """Return the job file of a small program; ``fields`` are further ones, or take the place of these."""
    known: dict[str, Any] = {
        "workload": {"kind": "program", "command": command},
        "resources": {"cpus": 0.1, "memory": "64MiB"},
        "retry": {"max_attempts": 1},
    }
    return daemon.file(name, **{**known, **fields})
