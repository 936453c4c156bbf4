"""The files of kept curves: ``<state>/curves/<key>.json``, one per job and one for the devices."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.durable import publish
from runner.base.errors import disk_errors


@dataclass(frozen=True, slots=True)
class CurveFiles:
    """Satisfies ``runner.services.curves.KeptCurves``."""

    directory: Path

    def read(self, key: str) -> Any:  # noqa: ANN401  JSON
        try:
            return json.loads((self.directory / f"{key}.json").read_bytes())
        except (OSError, ValueError):
            return None

    def write(self, key: str, value: object) -> None:
        """Keep a value, in place of what was kept; may raise Unavailable."""
        target = self.directory / f"{key}.json"
        with disk_errors(target):
            self.directory.mkdir(mode=0o700, exist_ok=True)
            publish(target, json.dumps(value, separators=(",", ":")).encode())

    def remove(self, key: str) -> None:
        (self.directory / f"{key}.json").unlink(missing_ok=True)

    def names(self) -> tuple[str, ...]:
        if not self.directory.is_dir():
            return ()
        return tuple(path.stem for path in self.directory.glob("*.json"))
