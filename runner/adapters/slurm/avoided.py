"""Nodes that a job has lost attempts on: for a day its next attempts ask Slurm for others."""

import json
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from runner.adapters.slurm.commands import Over, SlurmCommands
from runner.adapters.slurm.records import write_file
from runner.base.errors import Unavailable
from runner.core.ports.executor import LaunchRefused

AVOIDED: Final = timedelta(days=1)

MOST_NODES: Final = 64
"""Of one job that are remembered, and that one attempt may name."""

_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LOST: Final = re.compile(r"down|fail|drain|drng|boot|unk|not_resp|powering|.*\*")
"""States in ``sinfo`` of a node that is not there."""


def node_names(text: str) -> tuple[str, ...]:
    """Return the names of nodes in what a job has written, one a line; nothing else is taken."""
    return tuple(dict.fromkeys(word for word in text.split() if _NODE.fullmatch(word)))[:MOST_NODES]


def absent_nodes(commands: SlurmCommands, nodes: str) -> tuple[str, ...]:
    """Return those of some nodes, as Slurm writes them, that Slurm has lost; () if it does not answer."""
    try:
        said = commands.ask("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %t")
    except (Unavailable, LaunchRefused, Over):
        return ()
    found = (line.split() for line in said.splitlines())
    return tuple(dict.fromkeys(each[0] for each in found if len(each) == 2 and _LOST.match(each[1])))


@dataclass(frozen=True, slots=True)
class AvoidedNodes:
    """Nodes to avoid, kept in a file."""

    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, job_id: str, nodes: Iterable[str], now_s: float) -> None:
        """Note that a job has lost an attempt on some nodes; ``now_s`` is in Unix time."""
        with self._lock:
            known = self._read(now_s)
            before = known.get(job_id, {})
            after = {**dict.fromkeys(nodes, now_s), **before}
            if after != before:
                known[job_id] = dict(list(after.items())[:MOST_NODES])
                write_file(self.path, json.dumps(known))

    def of(self, job_id: str, now_s: float) -> tuple[str, ...]:
        """Return the nodes that a job avoids, in the order of their names."""
        with self._lock:
            return tuple(sorted(self._read(now_s).get(job_id, {})))

    def _read(self, now_s: float) -> dict[str, dict[str, float]]:
        """Return the nodes that are still avoided, by job."""
        known: dict[str, dict[str, float]] = {}
        with suppress(OSError, ValueError, AttributeError, TypeError):
            for job_id, nodes in json.loads(self.path.read_text()).items():
                fresh = {
                    str(name): float(at)
                    for name, at in nodes.items()
                    if abs(now_s - float(at)) < AVOIDED.total_seconds()
                }
                if fresh:
                    known[str(job_id)] = fresh
        return known
