"""A sweep beside the whole grid: its steps, its time, and the bits of its winner after kills.

All candidates of ``examples/sweep.yaml`` are trained to the end first, undisturbed.  Then the sweep runs;
half-way its daemon and a candidate are killed.  The winner must have the bits that it has in the grid.
"""

import os
import signal
import subprocess
import sys
import time

from scripts.demo_daemon import ROOT, RUNNER, Daemon, Json, compare, place

FILE = ROOT / "examples" / "sweep.yaml"
DAEMON = Daemon(place("demo-sweep"))
PATIENCE_S = 3600
ENDED = {"succeeded", "failed", "cancelled"}


def submit(name: str, *, stops: bool) -> list[str]:
    """Submit all candidates, which with ``stops`` pause at rungs."""
    lines = FILE.read_text().splitlines()
    DAEMON.state.mkdir(parents=True, exist_ok=True)
    file = DAEMON.state.parent / f"{name}.yaml"
    file.write_text("\n".join(line for line in lines if stops or not line.startswith("  stop:")) + "\n")
    return DAEMON.runner("submit", str(file), "--name", name, show=False).split()[::2]


def await_all(name: str, *, kills: bool) -> None:
    """Wait until all candidates have ended; kill the daemon and a candidate once some are at a rung."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = DAEMON.json("sweep", "show", name)["candidates"]
        if all(each["state"] in ENDED for each in found):
            if kills:
                sys.exit(f"demo: all candidates of {name} ended before one of them was killed")
            return
        if time.monotonic() > deadline:
            sys.exit(f"demo: {name} is not over after {PATIENCE_S} s; runner sweep show {name}")
        running = [each for each in found if each["state"] == "running"]
        if kills and running and sum(bool(each["values"]) for each in found) * 2 >= len(found):
            kills = not kill_one(running)
        time.sleep(2)


def kill_one(running: list[Json]) -> bool:
    """Kill a candidate, and then the daemon; False: each of them has paused or ended meanwhile."""
    pid = DAEMON.about()["pid"]
    for each in running:
        command = [RUNNER, "kill", "--signal", "KILL", each["job"]]
        killed = subprocess.run(command, check=False, capture_output=True, env=DAEMON.environment)
        if killed.returncode == 0:
            os.kill(pid, signal.SIGKILL)
            print(f"kill -9 of candidate {each['name']} and of the daemon (pid {pid})", flush=True)
            return True
    return False


def row(name: str, jobs: list[str]) -> tuple[int, float, str, int]:
    """Return the steps and CPU hours of all candidates, and the best one with its number."""
    found = DAEMON.json("sweep", "show", name)
    steps = sum(each["step"] or 0 for each in found["candidates"])
    return steps, found["device_h"], found["best"], jobs.index(found["best"])


def main() -> int:
    stamp = time.strftime("%H%M%S")
    names = {"grid": f"grid-{stamp}", "sweep": f"sweep-{stamp}"}
    rows, jobs, took = {}, {}, {}
    for kind, name in names.items():
        began = time.monotonic()
        jobs[kind] = submit(name, stops=kind == "sweep")
        print(f"{name}: {len(jobs[kind])} candidates", flush=True)
        await_all(name, kills=kind == "sweep")
        rows[kind], took[kind] = row(name, jobs[kind]), time.monotonic() - began
    print(f"{'':8}{'steps':>8}{'CPU h':>9}{'minutes':>9}{'best':>6}")
    for kind, (done, used, _, number) in rows.items():
        print(f"{kind:8}{done:>8}{used:>9.3f}{took[kind] / 60:>9.1f}{number + 1:>6}")
    steps, hours = (float(rows["sweep"][part]) / float(rows["grid"][part]) for part in (0, 1))
    print(f"of the grid: {steps:.2f} of its steps, {hours:.2f} of its CPU time")
    number = rows["sweep"][3]
    print(f"winner {number + 1}, after the kills and in the grid:")
    same = compare({kind: DAEMON.weights(jobs[kind][number]) for kind in ("sweep", "grid")})
    DAEMON.runner("stop", show=False)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
