"""Unit tests are pure: one that starts a process fails, and belongs in ``tests/integration``."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import matplotlib.font_manager  # noqa: F401  (asks fc-list for the fonts when nobody of this account has drawn yet)
import pytest

STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
_started: list[str] = []


def _note(event: str, _arguments: tuple[object, ...]) -> None:
    if event in STARTS:
        _started.append(event)


sys.addaudithook(_note)


@pytest.fixture(autouse=True)
def _starts_no_process() -> Iterator[None]:
    _started.clear()
    yield
    assert not _started, (
        f"a unit test started a process ({', '.join(_started)}); see tests/integration/process"
    )


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever is written by torch find no space."""
    usual = Path.open

    def opened(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        return usual(Path("/dev/full") if mode == "wb" else path, mode, *rest, **named)

    monkeypatch.setattr(Path, "open", opened)
