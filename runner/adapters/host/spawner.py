"""The process that starts workers with the ids of users: a part of the daemon that has one thread.

Run as ``python -m runner.adapters.host.spawner FD``.  A request is one packet: JSON with ``uid``, ``gid``,
``groups`` and ``cpu_s``, and one end of a socket.  It forks a child, which takes on all ids of the user for
good, with that loses every capability, and serves the calls of ``worker`` on the socket.  With ``cpu_s`` the
child has so much processor time, and serves one call.  The process ends when the daemon closes the socket,
also by dying, and kills its children first: their users may have stopped them.

With ``UID:GID`` as a second argument it does not trust the daemon: it looks up the groups of a user itself,
and works for root as this user.  So nothing is ever opened as root.
"""

import gc
import json
import os
import pwd
import signal
import socket
import sys
from contextlib import suppress
from functools import cache
from typing import Any, Final

from runner.adapters.host.accounts import has_group
from runner.adapters.rpc.errors import ErrorKinds
from runner.adapters.rpc.frames import receive_part, send
from runner.base.errors import Unavailable
from runner.base.identity import become

MAX_CHILDREN_PER_USER: Final = 16
"""More workers of one user at a time are refused: each may wait for a file system that does not answer."""
MAX_PACKET_BYTES: Final = 64 * 1024
NOBODY: Final = 65534
BUSY: Final = "too many files of this user are being read; try again"


def main() -> None:
    """Serve requests until the other end of the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the daemon decides when this ends
    instead_of_root = tuple(map(int, sys.argv[2].split(":"))) if len(sys.argv) > 2 else None
    serve(socket.socket(fileno=int(sys.argv[1])), instead_of_root)


def serve(requests: socket.socket, instead_of_root: tuple[int, ...] | None = None) -> None:
    """Start a worker for each request."""
    children: dict[int, int] = {}
    while True:
        packet, descriptors, _ = receive_part(requests, MAX_PACKET_BYTES, 1)
        _reap(children)
        if not packet:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            return
        for descriptor in descriptors:
            with socket.socket(fileno=descriptor) as calls:
                _begin(packet, calls, children, requests, instead_of_root)


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
    calls: socket.socket,
    children: dict[int, int],
    requests: socket.socket,
    instead_of_root: tuple[int, ...] | None,
) -> None:
    try:
        request: dict[str, Any] = dict(json.loads(packet))
        uid = int(request["uid"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return  # whoever asks gets no answer
    if list(children.values()).count(uid) >= MAX_CHILDREN_PER_USER:
        with suppress(OSError):
            send(calls, ErrorKinds().pack(Unavailable(BUSY)))
        return
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
        become(int(request["uid"]), int(request["gid"]), [int(group) for group in request["groups"]])
        _work(calls, request["cpu_s"])
        status = 0
    finally:
        os._exit(status)


@cache
def _load_worker() -> None:
    """Load what all workers need before the first one is forked: they share it, and may lack the right."""
    gc.disable()  # nothing loaded here can be freed, and collection takes a fifth of the start
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # structlog would load it; nothing is drawn
    from runner.adapters.host import worker  # noqa: PLC0415  (on the first request)

    worker.warm_up()
    gc.freeze()  # so that the workers do not copy it
    gc.enable()


def _work(calls: socket.socket, cpu_s: int | None) -> None:
    from runner.adapters.host import worker  # noqa: PLC0415  (loaded before this process was forked)

    if cpu_s is None:
        worker.serve(calls)
    else:
        worker.serve_one(calls, int(cpu_s))


def rights_of(uid: int, gid: int, instead_of_root: tuple[int, ...]) -> dict[str, Any]:
    """Return the ids with which something is opened for a user, from the host's own records."""
    if uid == 0:
        uid, gid = instead_of_root
        return {"uid": uid, "gid": gid, "groups": [gid]}
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        gid = NOBODY if gid == 0 or has_group(gid) else gid
        return {"uid": uid, "gid": gid, "groups": [gid]}
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return {"uid": uid, "gid": entry.pw_gid, "groups": groups}


if __name__ == "__main__":
    main()
