"""The time from an accepted job to its first training step, by parts, compared with the same done by hand.

By hand is ``docker run`` of the same image with the same user, variables and mount, and a program of fifteen
lines that imports torch, reads the same text, builds a transformer of the same size and takes one step.
Beside these, the runner's own program in ``docker run`` tells its share from that of the daemon, and a
program that imports torch alone tells what cannot be less.  All clocks end at a line of the log.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from bench.cases.first_line import await_content, warm_up
from bench.cases.resume import await_first_step, time_cold_start
from bench.rivals import container
from bench.support import interleave
from bench.support.daemon import BenchDaemon, running_daemon
from bench.support.jobfile import job_text
from bench.support.result import Aim, Line, Result, Series
from bench.support.scratch import Scratch
from bench.support.stats import median

BENCH: Final = "start"
ACCEPTED: Final = "accepted to first step"
BY_HAND: Final = "docker run by hand to first step"
OWN: Final = "docker run of our program"
IMPORT: Final = "docker run of import torch alone"
AIM: Final = 1.15

PROGRAM: Final = """
import pathlib, sysconfig, torch
from torch import nn
paths = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in paths)), dtype=torch.uint8).long()
layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True)
body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
embed, head = nn.Embedding(256, 128), nn.Linear(128, 256)
parameters = [each for part in (embed, body, head) for each in part.parameters()]
optimizer = torch.optim.AdamW(parameters, 1e-3)
rows = torch.stack([text[at : at + 65] for at in torch.randint(len(text) - 65, (16,)).tolist()])
mask = nn.Transformer.generate_square_subsequent_mask(64)
found = head(body(embed(rows[:, :-1]), mask=mask, is_causal=True))
nn.functional.cross_entropy(found.flatten(0, 1), rows[:, 1:].flatten()).backward()
optimizer.step()
print("step 1/1", flush=True)
"""

Parts = dict[str, list[float]]


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the time to the first step beside that by hand, with its parts."""
    with running_daemon(scratch.directory("daemon")) as daemon:
        file = daemon.write(job_text(steps=1, log_every=1))
        plan = daemon.plan(file, warm_up(daemon, daemon.write(job_text(), "warm-up.yaml")))
        parts: Parts = {}
        contestants = {
            ACCEPTED: lambda: _time_accepted(daemon, file, parts),
            BY_HAND: _time_by_hand(scratch, plan, PROGRAM),
            OWN: time_cold_start(scratch, plan),
            IMPORT: _time_by_hand(scratch, plan, "import torch; print('step 1/1', flush=True)"),
        }
        seconds = interleave.interleave(scratch.effort.resumes, scratch.effort.warmups, contestants)
    ours, by_hand, own, least = (Series(name, "s", each) for name, each in seconds.items())
    told = ", ".join(f"{name} {median(values):.2f} s" for name, values in parts.items())
    yield Result(BENCH, ours, by_hand, Aim(AIM, "ratio"), f"p50 of each part: {told}")
    yield Result(BENCH, own, by_hand)
    yield Result(BENCH, ours, least)


def _time_accepted(daemon: BenchDaemon, file: Path, parts: Parts) -> float:
    """Return the seconds from the daemon's answer to the first step, and note those of each part."""
    job = daemon.submit(file)
    began, accepted = time.perf_counter(), time.time()
    first_line = await_content(daemon.log(job, 1)) - began
    took = await_first_step(daemon.log(job, 1)) - began
    daemon.await_state(job, "finished")
    metrics = (daemon.client.job(job)["result"] or {})["metrics"]
    at = {event["kind"]: datetime.fromisoformat(event["at"]).timestamp() for event in daemon.events(job)}
    launched, loaded, read = at["launched"] - accepted, metrics["seconds_init"], metrics["seconds_data"]
    found = {
        "daemon and engine, until the container runs": launched,
        "interpreter, until the first line": first_line - launched,
        "import of torch and the model": loaded,
        "data": read,
        "first step": took - first_line - loaded - read,
    }
    for name, seconds in found.items():
        parts.setdefault(name, []).append(seconds)
    return took


def _time_by_hand(scratch: Scratch, plan: container.DockerPlan, program: str) -> Callable[[], float]:
    """Return a contestant: ``docker run`` of a program by hand until its first step."""
    return time_cold_start(scratch, replace(plan, config={**plan.config, "Cmd": ["python", "-c", program]}))
