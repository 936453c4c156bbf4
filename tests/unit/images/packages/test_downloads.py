"""Progress of a download, from what the resolver's program says and what the lock knows."""

from pathlib import Path

import pytest

from images import log as logs
from images.errors import BuildFailed
from images.log import BuildLog
from images.packages.lock import Lock, Package, Wheel
from images.packages.resolve import IndexUnavailable
from images.packages.unpack import Downloads, _failure

MIB = 1024**2


def lock(**sizes: int) -> Lock:
    wheels = (
        Package(name.replace("_", "-"), "1", Wheel(f"{name}.whl", "https://x", "a" * 64, size))
        for name, size in sizes.items()
    )
    return Lock("3.11", "x86_64", tuple(wheels))


def test_each_wheel_that_is_there_is_counted_with_its_size(tmp_path: Path) -> None:
    told: list[str] = []
    with BuildLog(tmp_path / "log", told.append) as log:
        downloads = Downloads(lock(large_one=30 * MIB, other=10 * MIB), log)
        for line in (
            "Downloading other (10.0MiB)",
            " Downloaded other",
            " Downloaded Large.One",
            " Downloaded x",
        ):
            downloads.line(line)
    assert [line for line in told if line.startswith("packages:")] == [
        "packages: 10.0 of 40.0 MiB are downloaded",
        "packages: 40.0 of 40.0 MiB are downloaded",
        "packages: 40.0 of 40.0 MiB are downloaded",
    ]


def test_parts_are_counted_once_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    parts = [bytes(MIB)] * 3
    with BuildLog(tmp_path / "log", told.append) as log:
        assert list(log.counted(parts, 3 * MIB, "layer")) == parts
        assert told == []
        monkeypatch.setattr(logs, "COUNT_EVERY_S", 0.0)
        assert list(log.counted(parts, 3 * MIB, "layer")) == parts
    assert told == ["layer: 1 of 3 MiB", "layer: 2 of 3 MiB", "layer: 3 of 3 MiB"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("HTTP status client error (404 Not Found)", BuildFailed),
        ("HTTP status client error (401 Unauthorized)", BuildFailed),
        ("HTTP status client error (429 Too Many Requests)", IndexUnavailable),
        ("HTTP status server error (503 Service Unavailable)", IndexUnavailable),
        ("error sending request", IndexUnavailable),
    ],
)
def test_a_wheel_that_has_vanished_is_not_asked_for_again(status: str, kind: type[BuildFailed]) -> None:
    """As ``uv`` says it."""
    cause = "  cause: Failed to fetch: http://index/aa-1-py3-none-any.whl\n"
    found = _failure(f"Using Python\nerror: Failed to download `aa==1`\n{cause}  cause: {status} for url\n")
    assert type(found) is kind
    assert "aa-1-py3-none-any.whl" in str(found)
