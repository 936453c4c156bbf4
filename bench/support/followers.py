"""Clients that follow jobs, each on a thread: ``python -m bench.support.followers SOCKET JOB...``.

They do what ``runner submit --follow`` does, and print nothing but one line when all have begun.
"""

import sys
from threading import Barrier, Thread
from typing import Final

from runner.cli.follow import JsonView, follow
from runner.client.autostart import Endpoint
from runner.client.client import Client
from runner.client.types import JobDetail

BEGIN_S: Final = 60.0


class SilentView(JsonView):
    """Says once that it has seen its job, and prints nothing."""

    def __init__(self, begun: Barrier) -> None:
        super().__init__()
        self._begun: Barrier | None = begun

    def look(self, job: JobDetail, eta_s: float | None) -> None:  # noqa: ARG002  (of every view)
        if self._begun is not None:
            self._begun.wait(BEGIN_S)
            self._begun = None


def main() -> None:
    """Follow jobs until the end of this process."""
    socket, *jobs = sys.argv[1:]
    begun = Barrier(len(jobs) + 1)
    for job in jobs:
        client = Client(Endpoint(socket, None))
        Thread(target=follow, args=(client, job, SilentView(begun)), daemon=True).start()
    begun.wait(BEGIN_S)
    print("following", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
