"""What a process of the user says of a code directory: nothing of it is believed."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.adapters.host.code_snapshot import walk
from runner.adapters.host.code_snapshot.frames import CHUNK_BYTES
from runner.adapters.host.code_snapshot.snapshots import CodeLimits, HostCodeSnapshots
from runner.adapters.host.paths import PathRefusedError
from runner.base.errors import Refused, Unavailable
from runner.core.ports.code import CodeRefused, WorkingDirectory
from runner.core.ports.users import Owner, User

ME = User(1001, 1001, (1001,), "ada")
OWNER = Owner(1001, 1001, "ada")
DIGEST = hashlib.sha256(b"one").hexdigest()
Frame = tuple[bytes, bytes]


def listing(name: Any = "a.py", size: Any = 3, digest: Any = "", **other: Any) -> Frame:
    files = [[name, [size, 0, 0, 1, 0o100644], digest]]
    said = {
        "version": walk.LISTING_VERSION,
        "taken_ns": 10**18,
        "directories": [["", [1, 0, 0, 1, 0o40755], files, [], [], False, []]],
        "above": [],
        "index": None,
        "left_out": [],
        "git": None,
        "stamp": [],
    }
    return walk.LISTING, json.dumps(said | other).encode()


ONE = [(walk.CONTENT, b"one"), (walk.END_OF_FILE, b'"a.py"')]


class Reader:
    """A process of the user that has sent what it likes."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames, self.taken = frames, 0

    def stream_code_as_user(self, *_: object) -> "Reader":
        return self

    def frames(self) -> Iterator[Frame]:
        for frame in self._frames:
            self.taken += 1
            yield frame

    def close(self) -> None: ...


def reads(place: Path, frames: Iterator[Frame], limits: CodeLimits) -> tuple[HostCodeSnapshots, Reader]:
    reader: Any = Reader(frames)
    return HostCodeSnapshots(place / "store", reader, limits), reader


def test_what_was_read_is_kept_and_the_next_look_knows_it(tmp_path: Path) -> None:
    kept, _ = reads(tmp_path, iter([*ONE, listing()]), CodeLimits())
    taken = kept.take(ME, tmp_path)
    entries = kept.entries(ME.uid, taken.id) or {}
    assert [(path, each.digest, each.size) for path, each in entries.items()] == [("a.py", DIGEST, 3)]
    again, _ = reads(tmp_path, iter([listing(digest=DIGEST)]), CodeLimits())
    assert again.take(ME, tmp_path).id == taken.id


@pytest.mark.parametrize(
    "said",
    [
        listing(digest="xx/etc/shadow"),
        listing(digest="ab" + "/../" * 20),
        listing(digest=5),
        listing(size=-1),
        listing(size="many"),
        listing(name=5),
        listing(git={"path": "x"}),
        listing(left_out=[[]]),
        listing(directories=5),
        (walk.LISTING, b"[" * 10_000),
        (walk.LISTING, b"x"),
        (walk.SAME, b"{}"),
        (walk.PROBLEMS, b"{}"),
        (walk.PROBLEMS, json.dumps(["x"] * 100).encode()),
        (walk.END_OF_FILE, b"[[]]"),
    ],
)
def test_what_no_look_at_a_directory_says_is_refused(tmp_path: Path, said: Frame) -> None:
    kept, _ = reads(tmp_path, iter([*ONE, said]), CodeLimits())
    with pytest.raises(Refused, match=r"^workload\.code: the process that reads it says what cannot be"):
        kept.take(ME, tmp_path)
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


def test_a_name_that_is_no_utf_8_is_kept(tmp_path: Path) -> None:
    name = b"caf\xe9.py".decode(errors="surrogateescape")
    frames = [(walk.CONTENT, b"one"), (walk.END_OF_FILE, json.dumps(name).encode()), listing(name)]
    kept, _ = reads(tmp_path, iter(frames), CodeLimits())
    assert list(kept.entries(ME.uid, kept.take(ME, tmp_path).id) or ()) == [name]


def test_the_daemon_opens_no_path_for_what_is_no_digest(tmp_path: Path) -> None:
    """As in a manifest of a damaged store."""
    (tmp_path / "secret").write_text("secret")
    kept, _ = reads(tmp_path, iter([*ONE, listing()]), CodeLimits())
    taken = kept.take(ME, tmp_path)
    manifest = tmp_path / "store" / str(ME.uid) / "snapshots" / f"{taken.id}.json"
    manifest.write_text(manifest.read_text().replace(DIGEST, f"xx{tmp_path}/secret"))
    with pytest.raises(Refused, match="is no digest; submit it again"):
        kept.fill(ME.uid, WorkingDirectory(taken.id), tmp_path, OWNER)
    with pytest.raises(Refused, match="is no digest"):
        kept.read(ME.uid, f"xx{tmp_path}/secret", 100)


@pytest.mark.parametrize(
    ("frame", "limits"),
    [
        (lambda: (walk.CONTENT, bytes(CHUNK_BYTES)), CodeLimits(max_bytes=2 * CHUNK_BYTES)),
        (lambda: (walk.CONTENT, bytes(CHUNK_BYTES)), CodeLimits(None, bytes_per_user=2 * CHUNK_BYTES)),
        (lambda: (walk.CONTENT, b""), CodeLimits(None, max_files=10)),
        (lambda: (walk.AGAIN, b""), CodeLimits(max_files=10)),
        (lambda: (walk.WORKING, b""), CodeLimits(max_files=10)),
        (lambda: (walk.END_OF_FILE, b'"a.py"'), CodeLimits(max_files=10)),
    ],
)
def test_a_directory_without_end_is_received_to_its_limits(
    tmp_path: Path, frame: Callable[[], Frame], limits: CodeLimits
) -> None:
    kept, reader = reads(tmp_path, (frame() for _ in range(10_000)), limits)
    with pytest.raises(CodeRefused, match="more is read than may be"):
        kept.take(ME, tmp_path)
    assert reader.taken < 2000
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


TWO = b"x" * CHUNK_BYTES + b"end"
LARGE = [(walk.CONTENT, TWO[:CHUNK_BYTES]), (walk.CONTENT, b"end"), (walk.END_OF_FILE, b'"a.py"')]


@pytest.mark.parametrize(("content", "frames"), [(b"one", ONE), (TWO, LARGE)])
def test_a_file_that_was_torn_in_a_power_cut_is_replaced_by_the_next_submission(
    tmp_path: Path, content: bytes, frames: list[Frame]
) -> None:
    said, place = listing(size=len(content)), tmp_path / "made"
    kept, _ = reads(tmp_path, iter([*frames, said]), CodeLimits())
    snapshot = kept.take(ME, tmp_path).id
    [file] = (tmp_path / "store" / str(ME.uid) / "files").rglob("??/*")
    file.chmod(0o600)
    file.write_bytes(b"")
    again, _ = reads(tmp_path, iter([*frames, said]), CodeLimits())
    place.mkdir()
    with pytest.raises(Refused, match=f"a file of {len(content)} bytes has 0; submit it again"):
        again.fill(ME.uid, WorkingDirectory(snapshot), place, OWNER)
    assert not list((tmp_path / "store" / str(ME.uid) / "listings").iterdir())
    assert again.take(ME, tmp_path).id == snapshot
    assert file.read_bytes() == content
    assert again._store(ME.uid).used_bytes > len(content)


@pytest.mark.parametrize("error", [OSError(28, "No space left"), PathRefusedError("gone")])
def test_what_was_kept_of_a_look_that_failed_is_removed_at_once(tmp_path: Path, error: Exception) -> None:
    def broken() -> Iterator[Frame]:
        yield from ONE
        raise error

    kept, _ = reads(tmp_path, broken(), CodeLimits())
    with pytest.raises((Unavailable, CodeRefused)):
        kept.take(ME, tmp_path)
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
