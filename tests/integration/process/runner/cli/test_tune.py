"""``runner tune`` on a real daemon: a variable that makes a program faster, and one that makes it slower."""

from typing import Final

import yaml

from tests.fakes.daemon.service import service

PROGRAM: Final = """
import json, os, time
factor = {"fast": 0.1, "slow": 3.0}.get(os.environ.get("KERNEL"), 1.0)
with open(os.environ["RUNNER_ATTEMPT_DIR"] + "/metrics.jsonl", "w") as file:
    for step in range(1, 25):
        time.sleep(0.02 * factor)
        file.write(json.dumps({"step": step, "time": time.time(), "loss": 1 / step}) + "\\n")
"""


def test_the_planted_fast_value_is_kept_and_the_slow_one_is_not() -> None:
    with service(executor="process") as daemon:
        daemon.start()
        workload = {"kind": "program", "command": ["python3", "-c", PROGRAM]}
        file = daemon.file("mine", workload=workload, resources={"cpus": 1, "memory": "256MiB"})
        found = daemon.answer("tune", str(file), "--for", "30m", "--variable", "KERNEL=slow,fast", "--json")
        assert [(each["name"], each["value"]) for each in found["kept"]] == [("KERNEL", "fast")]
        assert found["final"]["low"] > 1
        [slow] = [each for each in found["rows"] if each["value"] == "slow"]
        assert slow["why"].endswith("x at first sight")
        tuned = file.with_name("mine.tuned.yaml")
        assert yaml.safe_load(tuned.read_text())["profile"]["environment"] == {"KERNEL": "fast"}
        daemon.submit(tuned)
        assert daemon.ends("mine")["outcome"] == "succeeded"
