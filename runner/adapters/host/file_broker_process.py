"""The process that opens files with the rights of users: a part of the daemon that has one thread.

Run as ``python -m runner.adapters.host.file_broker_process FD``.  For each request it forks a child.  The
child takes on all ids of the user for good, and with that loses every capability.  It opens the path,
checks it, and sends the descriptor back.  So a process that is the user's in every respect opens the
file, and a file system that does not answer holds up that child alone.

A request is one packet: JSON with ``uid``, ``gid``, ``groups``, ``path`` and ``kind``, and one end of a
socket pair.  The child answers on it: JSON with ``problem`` (a line, or null), and the descriptor if
there is none.  A request of the kind ``beneath`` comes with an open directory, too, and ``path`` is a name
below it.  A request of the kind ``code`` comes with a stream, to which the child writes what a code directory
holds, and with the listing of the last time if there is one.  A request of the kind ``update`` comes with a
stream of changes and the working directory that they are made in; one of the kind ``archive`` with a stream
and a directory, below which ``path`` is what is written as a tar archive.  A request of the kind ``damage``
comes with a directory, and ``paths`` names the files below it whose formats the child reads.  A child that
was asked for as a ``worker`` serves the calls of ``worker`` on its end of the socket pair.  The process
ends when the daemon closes the socket, also by dying.

With ``UID:GID`` as a second argument it does not trust the daemon: it looks up the groups of a user itself,
and opens what root asks for as this user.  So nothing is ever opened as root.
"""

import codecs
import gc
import grp
import json
import os
import pwd
import resource
import signal
import socket
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from runner.adapters.host.archive import write_archive
from runner.adapters.host.code_snapshot.frames import read_frames
from runner.adapters.host.code_snapshot.update import apply_changes
from runner.adapters.host.code_snapshot.walk import WalkLimits, send_tree
from runner.adapters.host.file_formats import find_first_damage
from runner.adapters.host.paths import PathRefusedError, open_beneath, open_path
from runner.base.identity import become
from runner.base.textfile import one_line

MAX_CHILDREN_PER_USER: Final = 16
"""More requests of one user at a time are refused: each may wait for a file system that does not answer."""
MAX_PACKET_BYTES: Final = 64 * 1024
CPU_S: Final = 10
CODE_CPU_S: Final = 120
"""Reading a code directory of the operator's own limit may take longer than opening a file."""
WORKER_CPU_S: Final = 3600
"""Of all requests of a worker; each has a limit of its own."""
ARCHIVE_CPU_S: Final = 3600
"""Outputs of a job may have any size."""
MAX_KEPT: Final = 20
"""Paths that an answer names at most."""
MAX_PATH_SHOWN: Final = 100
MAX_DESCRIPTORS: Final = 4
NOBODY: Final = 65534


def main() -> None:
    """Serve requests until the other end of the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the daemon decides when this ends
    codecs.lookup("unicode_escape")  # for messages; a child may lack the right to load it
    instead_of_root = tuple(map(int, sys.argv[2].split(":"))) if len(sys.argv) > 2 else None
    serve(socket.socket(fileno=int(sys.argv[1])), instead_of_root)


def serve(requests: socket.socket, instead_of_root: tuple[int, ...] | None = None) -> None:
    """Answer each request in a child of its own."""
    children: dict[int, int] = {}
    while True:
        packet, descriptors, _, _ = socket.recv_fds(requests, MAX_PACKET_BYTES, MAX_DESCRIPTORS)
        if not packet:
            return
        _reap(children)
        try:
            _begin(packet, descriptors, children, requests, instead_of_root)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _reap(children: dict[int, int]) -> None:
    """Forget the children that have ended."""
    while children:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        children.pop(pid, None)


def _begin(
    packet: bytes,
    descriptors: list[int],
    children: dict[int, int],
    requests: socket.socket,
    instead_of_root: tuple[int, ...] | None,
) -> None:
    if not descriptors:
        return
    answers = socket.socket(fileno=os.dup(descriptors[0]))
    with answers:
        try:
            request: dict[str, Any] = dict(json.loads(packet))
            uid = int(request["uid"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # whoever asks gets no answer
        if list(children.values()).count(uid) >= MAX_CHILDREN_PER_USER:
            _answer(answers, {"busy": True})
            return
        if request.get("kind") == "worker":
            _load_worker()
        pid = os.fork()
        if pid:
            children[pid] = uid
            return
        status = 1
        try:
            requests.close()
            if instead_of_root is not None:
                request |= rights_of(uid, int(request["gid"]), instead_of_root)
            _answer_as_user(request, descriptors[1:], answers)
            status = 0
        finally:
            os._exit(status)


def _answer_as_user(request: dict[str, Any], directory: list[int], answers: socket.socket) -> None:
    become(int(request["uid"]), int(request["gid"]), [int(group) for group in request["groups"]])
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, ARCHIVE_CPU_S))
    if request["kind"] == "worker":
        from runner.adapters.host import worker  # noqa: PLC0415  (loaded before this process was forked)

        resource.setrlimit(resource.RLIMIT_CPU, (WORKER_CPU_S, WORKER_CPU_S))
        worker.serve(answers)
        return
    if request["kind"] == "code":
        _answer(answers, {"problem": _send_code(request, *directory)})
        return
    if request["kind"] == "archive":
        _answer(answers, {"problem": _archive(request, *directory)})
        return
    if request["kind"] == "update":
        _answer(answers, {"problem": None, "kept": _update(request, *directory)})
        return
    if request["kind"] == "damage":
        _answer(answers, {"problem": None, "damage": _find_damage(request, *directory)})
        return
    try:
        descriptor = _open(request, directory)
    except PathRefusedError as error:
        _answer(answers, {"problem": str(error)})
    else:
        _answer(answers, {"problem": None}, descriptor)


@cache
def _load_worker() -> None:
    """Load what all workers need before the first one is forked: they share it, and may lack the right."""
    from runner.adapters.host import worker  # noqa: PLC0415  (on the first request for one)

    worker.warm_up()
    gc.collect()
    gc.freeze()  # so that the workers do not copy it


def _open(request: dict[str, Any], directory: list[int]) -> int:
    if directory:
        return open_beneath(directory[0], request["path"])
    return open_path(Path(request["path"]), request["kind"]).reopen()


def _send_code(request: dict[str, Any], stream: int, *known: int) -> str | None:
    """Write what a code directory holds to a stream; return why it cannot be looked at, or None."""
    resource.setrlimit(resource.RLIMIT_CPU, (CODE_CPU_S, CODE_CPU_S))
    try:
        directory = open_path(Path(request["path"]), "directory").reopen()
    except PathRefusedError as error:
        return str(error)
    os.fchdir(directory)
    limits = WalkLimits(request["max_bytes"], request["max_files"])
    skipped = frozenset((int(device), int(inode)) for device, inode in request["skip"])
    listing: dict[str, Any] = {}
    for descriptor in known:
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.readline()  # about the snapshot, which is the daemon's business
            listing = json.load(file)
    with suppress(BrokenPipeError, ConnectionResetError), os.fdopen(os.dup(stream), "wb", 1024**2) as out:
        send_tree(out, listing, limits, skipped)
    return None


def _update(request: dict[str, Any], stream: int, directory: int) -> list[str]:
    """Make the changes that come in on a stream; return the first paths that were left as they were."""
    resource.setrlimit(resource.RLIMIT_CPU, (CODE_CPU_S, CODE_CPU_S))
    os.fchdir(directory)
    with os.fdopen(os.dup(stream), "rb", 1024**2) as changes:
        kept = apply_changes(read_frames(changes), read_only=request["read_only"])
    return [path[:MAX_PATH_SHOWN] for path in kept[:MAX_KEPT]]


def _find_damage(request: dict[str, Any], directory: int) -> tuple[int, str] | None:
    """Return which file of a checkpoint is not whole, and what shows it; see ``find_first_damage``."""
    resource.setrlimit(resource.RLIMIT_CPU, (CODE_CPU_S, CODE_CPU_S))
    return find_first_damage(directory, [str(path) for path in request["paths"]])


def rights_of(uid: int, gid: int, instead_of_root: tuple[int, ...]) -> dict[str, Any]:
    """Return the ids with which something is opened for a user, from the host's own records."""
    if uid == 0:
        uid, gid = instead_of_root
        return {"uid": uid, "gid": gid, "groups": [gid]}
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        gid = NOBODY if gid == 0 or _is_group(gid) else gid
        return {"uid": uid, "gid": gid, "groups": [gid]}
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return {"uid": uid, "gid": entry.pw_gid, "groups": groups}


def _is_group(gid: int) -> bool:
    try:
        grp.getgrgid(gid)
    except KeyError:
        return False
    return True


def _archive(request: dict[str, Any], stream: int, directory: int) -> str | None:
    """Write what lies at a path below an open directory to a stream; return what is wrong, or None."""
    resource.setrlimit(resource.RLIMIT_CPU, (ARCHIVE_CPU_S, ARCHIVE_CPU_S))
    try:
        found = open_beneath(directory, request["path"])
        with suppress(BrokenPipeError, ConnectionResetError), os.fdopen(os.dup(stream), "wb", 1024**2) as out:
            write_archive(out, found)
    except PathRefusedError as error:
        return str(error)
    except OSError as error:
        return f"{one_line(error.filename or request['path'])}: {error.strerror or error}"
    return None


def _answer(answers: socket.socket, message: dict[str, Any], *descriptors: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked has stopped waiting
        socket.send_fds(answers, [json.dumps(message).encode()], descriptors)


if __name__ == "__main__":
    main()
