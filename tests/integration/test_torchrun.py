"""torchrun in a container without a network: its processes find each other, and each hears a stop once."""

from collections.abc import Iterator
from dataclasses import replace
from signal import SIGTERM

import pytest

from images.store import ImageStore
from tests.contract.worlds import Place, begun, docker_place, end, printed

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

TRAINER = """\
import signal, sys, time
import torch
import torch.distributed as dist
count = 0
def hear(number, frame):
    global count
    count += 1
signal.signal(signal.SIGTERM, hear)
dist.init_process_group("gloo")
world = torch.ones(1)
dist.all_reduce(world)
sys.stdout.write(f"ready {dist.get_rank()} of {int(world)}\\n")
sys.stdout.flush()
while not count:
    time.sleep(0.02)
time.sleep(1.2)  # it saves, for longer than the runner takes to look again
sys.stdout.write(f"rank {dist.get_rank()} heard {count}\\n")
"""

PROGRAM = "torchrun --nproc-per-node=2 home/train.py"


@pytest.fixture(scope="module")
def place(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    image = ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with docker_place(engine, image) as place:
        yield place


@pytest.mark.parametrize(
    "argv", [PROGRAM.split(), ["bash", "-o", "pipefail", "-c", f"{PROGRAM} | tee home/copy"]]
)
def test_torchrun_without_a_network_stops_with_both_processes(place: Place, argv: list[str]) -> None:
    request = place.request(*argv, job=f"torchrun-{argv[0]}")
    limits = replace(request.limits, memory_bytes=2 * 1024**3, pids=1024)
    request = replace(request, limits=limits)
    (request.run_dir / "home" / "train.py").write_text(TRAINER)
    executor = place.executor()
    executor.launch(request)
    for rank in (0, 1):
        begun(request, f"ready {rank} of 2\n")
    executor.signal(request.key, SIGTERM)
    end(executor, request.key)
    lines = sorted(line for line in printed(request).splitlines() if line.startswith("rank "))
    assert lines == ["rank 0 heard 1", "rank 1 heard 1"]
