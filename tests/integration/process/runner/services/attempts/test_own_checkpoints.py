"""Programs that save on their own and look for their newest checkpoint themselves, as plain processes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon.service import Service, service, until
from tests.fakes.patience import patience

NUMBERED = """\
import os, re, sys, time
from pathlib import Path

out = Path("out")
out.mkdir(exist_ok=True)
found = [int(re.fullmatch(r"checkpoint-(\\d+)", each.name)[1]) for each in out.glob("checkpoint-*")]
step = max(found, default=0)  # as get_last_checkpoint of Hugging Face does
print("from", step, flush=True)
for step in range(step + 100, 401, 100):
    (out / f"checkpoint-{step}").mkdir()
    (out / f"checkpoint-{step}" / "state.json").write_text(f'{{"attempt": {os.environ["RUNNER_ATTEMPT"]}}}')
    while f"{os.environ['RUNNER_ATTEMPT']}:{step}" == "2:300":
        time.sleep(0.05)
"""


HANGS = """\
import os, time
from pathlib import Path

Path("last.ckpt").write_text("whole")
for step in range(1, 6):
    print(f"step {step}/5 loss 0.5", flush=True)
    while step == 3 and os.environ["RUNNER_ATTEMPT"] == "1":
        time.sleep(0.05)
"""

NO_STEPS = """\
policy: 1
name: no-steps
extends: default
on_watch:
  - {{name: hangs, when: {{progress.idle_s: {{gt: {soon_s}}}}}, do: stop}}
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process", watch_every_s=0.2) as made:
        yield made.start()


def submit(daemon: Service, name: str, script: str, files: str, policy: str = "default") -> str:
    place = daemon.root / f"code of {name}"
    place.mkdir()
    (place / "train.py").write_text(script)
    file = daemon.file(
        name,
        workload={"kind": "program", "command": ["python3", "train.py"], "code": str(place)},
        resources={"cpus": 0.1, "memory": "64MiB"},
        checkpoint={"files": files},
        retry={"backoff": "0s"},
        policy=policy,
    )
    return daemon.submit(file)


def attempts(daemon: Service, job_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.job(job_id)["attempts"]
    return found


def test_a_restart_from_an_older_step_holds_for_a_script_that_looks_itself(daemon: Service) -> None:
    job_id = submit(daemon, "looks", NUMBERED, "out/checkpoint-*")
    assert daemon.ends(job_id)["outcome"] == "succeeded"
    daemon.runner("restart", job_id, "--from", "200")
    until(lambda: len(attempts(daemon, job_id)) == 2, "the second attempt")
    until(lambda: "from 200" in daemon.log(job_id, 2), "the script begins at the step that was asked for")
    place = daemon.paths(job_id, 2).work_dir / "out"
    until((place / "checkpoint-300/state.json").exists, "it saves")
    daemon.runner("kill", job_id, "--signal", "KILL")
    assert daemon.ends(job_id)["outcome"] == "succeeded"
    assert daemon.log(job_id, 3).splitlines() == ["from 300"]
    assert [json.loads((place / f"checkpoint-{n}/state.json").read_text()) for n in (300, 400)] == [
        {"attempt": 2},
        {"attempt": 3},
    ]
    assert [each["resumed_from"] for each in attempts(daemon, job_id)] == [None, 200, 300]
    aside = [f"lineages/1/set-aside/2/out/checkpoint-{step}" for step in (300, 400)]
    assert [each["set_aside"] for each in attempts(daemon, job_id)] == [[], aside, []]
    run = Path(daemon.job(job_id)["run_dir"])
    assert json.loads((run / aside[1] / "state.json").read_text()) == {"attempt": 1}
    assert f"set aside\t{aside[0]} (for attempt 2), {aside[1]} (for attempt 2)" in daemon.runner(
        "show", job_id
    )
    told = "attempt 2 started, from out/checkpoint-200 (step 200); set aside in lineages/1/set-aside/2: "
    assert f"{told}out/checkpoint-300, out/checkpoint-400" in daemon.runner("events", job_id)


def test_a_step_that_was_set_aside_can_be_restarted_from(daemon: Service) -> None:
    job_id = submit(daemon, "back", NUMBERED, "out/checkpoint-*")
    daemon.ends(job_id)
    daemon.runner("restart", job_id, "--from", "100")
    until(lambda: "from 100" in daemon.log(job_id, 2), "the script begins at the step that was asked for")
    daemon.runner("restart", job_id, "--from", "400")
    daemon.ends(job_id)
    assert daemon.log(job_id, 3).splitlines() == ["from 400"]
    daemon.runner("restart", job_id, "--from", "500", code=3)


IN_PARTS = """\
import json, os
from pathlib import Path

place = Path("out/checkpoint-10")
if place.exists():
    print("resumed", json.loads((place / "optimizer.json").read_text()), flush=True)
else:
    place.mkdir(parents=True)
    (place / "model.json").write_text("{}")
    if os.environ["RUNNER_ATTEMPT"] == "1":
        os.kill(os.getpid(), 9)
    (place / "optimizer.json").write_text("{}")
    print("saved", flush=True)
"""


def test_a_first_checkpoint_that_was_broken_off_is_begun_again_after_two_tries(daemon: Service) -> None:
    job_id = submit(daemon, "parts", IN_PARTS, "out/checkpoint-*")
    assert daemon.ends(job_id)["outcome"] == "succeeded"
    assert [each["resumed_from"] for each in attempts(daemon, job_id)] == [None, 10, 10, None]
    assert daemon.log(job_id, 4).splitlines() == ["saved"]
    told = "exception (it failed twice with its first checkpoint, and nothing has gone on from that)"
    assert told in daemon.runner("events", job_id)
    assert (Path(daemon.job(job_id)["run_dir"]) / "work/1/out/checkpoint-10/model.json").exists()


LAST_AND_BEST = """\
import os, pickle, time
from pathlib import Path

last = Path("out/last.pkl")
print("from", pickle.loads(last.read_bytes()) if last.exists() else 0, flush=True)
last.parent.mkdir(exist_ok=True)
if os.environ["RUNNER_ATTEMPT"] == "1":
    last.write_bytes(pickle.dumps(10))
    Path("out/best.pkl").write_bytes(pickle.dumps(11))
    while not Path("out/torn").exists():
        time.sleep(0.05)
    last.write_bytes(pickle.dumps(20)[:-2])
    os.kill(os.getpid(), 9)
"""


def test_a_torn_file_is_put_back_beside_a_newer_one_and_the_event_says_so(daemon: Service) -> None:
    job_id = submit(daemon, "torn", LAST_AND_BEST, "out/*.pkl")
    run = Path(daemon.job(job_id)["run_dir"])
    until(lambda: len(list(run.glob("kept/1/[0-9]*"))) == 2, "a version of each is kept")
    (daemon.paths(job_id, 1).work_dir / "out/torn").touch()
    assert daemon.ends(job_id)["outcome"] == "succeeded"
    assert daemon.log(job_id, 2).splitlines() == ["from 10"]
    told = "from out/best.pkl (version 2); torn, so its newest whole version was put back: out/last.pkl"
    assert told in daemon.runner("events", job_id)


def test_a_rule_stops_a_program_whose_log_tells_no_further_step(daemon: Service) -> None:
    (daemon.root / "no-steps.yaml").write_text(NO_STEPS.format(soon_s=patience(0.5)))
    job_id = submit(daemon, "hangs", HANGS, "last.ckpt", policy="no-steps.yaml")
    assert daemon.ends(job_id)["outcome"] == "succeeded"
    assert "stopped by rule hangs" in daemon.runner("show", job_id)
