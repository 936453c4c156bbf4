"""Programs of the user's own, through a real daemon and in real containers."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.store import ImageStore
from jobs.contract import checkpoints, verify
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.workloads.counter_image import counter_image

pytestmark = pytest.mark.engine

PLAIN = Path(__file__).parents[2] / "examples" / "programs" / "plain.py"


@pytest.fixture(scope="module")
def daemon(engine: str, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with (
        counter_image(engine, base_image) as counter,
        service(executor="docker", allowed_images={"counter": counter}) as made,
    ):
        yield made.start()
        made.assert_whole()


def program(daemon: Service, name: str, *command: str, image: str = "counter", **fields: Any) -> Path:
    """Write the job file of a program whose code lies beside it."""
    code = daemon.root / f"code of {name}"
    code.mkdir(exist_ok=True)
    shutil.copy(PLAIN, code)
    return daemon.file(
        name,
        workload={"kind": "program", "command": list(command), "code": str(code)},
        image=image,
        resources={"cpus": 1, "memory": "1GiB"},
        retry={"backoff": "0s", "max_attempts": 3},
        **fields,
    )


LOOK = """\
env | grep ^RUNNER_ | sort
pwd
touch here && echo "code is mine"
test -r "$RUNNER_ATTEMPT_DIR/spec.json" && echo "spec is there"
echo mine > "$RUNNER_JOB_DIR/home/mine" && echo "home is mine"
"""


def test_a_program_finds_what_the_contract_promises(daemon: Service) -> None:
    job_id = daemon.submit(program(daemon, "look", "/bin/sh", "-c", LOOK, seed=9))
    assert daemon.ends(job_id)["outcome"] == "succeeded"
    log = daemon.log(job_id)
    for line in (
        f"RUNNER_JOB_ID={job_id}",
        "RUNNER_ATTEMPT=1",
        "RUNNER_LINEAGE=1",
        "RUNNER_SEED=9",
        "RUNNER_JOB_DIR=/job",
        "RUNNER_CHECKPOINT_DIR=/job/lineages/1",
        "/code",
        "code is mine",
        "spec is there",
        "home is mine",
    ):
        assert line in log.splitlines(), log


def test_a_program_that_leaves_with_another_code_than_0_has_failed(daemon: Service) -> None:
    job_id = daemon.submit(program(daemon, "wrong", "/bin/sh", "-c", "echo no >&2; exit 3"), end="failed")
    assert "exit code 3" in daemon.ends(job_id)["why"]


def test_folders_of_a_user_called_as_our_packages_hide_nothing_in_an_image(daemon: Service) -> None:
    job = program(daemon, "names", "python3", "plain.py", "20", image="auto")
    for name in ("jobs", "runner", "images"):
        own = daemon.root / "code of names" / name / "__init__.py"
        own.parent.mkdir()
        own.write_text("raise ImportError('a package of the user')")
    assert daemon.ends(daemon.submit(job))["outcome"] == "succeeded"


BATCHES = """\
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.zeros(3, 512, 512)

print(sum(len(batch) for batch in DataLoader(Images(), batch_size=8, num_workers=2)))
"""


def test_loader_processes_have_room_by_default_and_a_full_shared_memory_is_told(daemon: Service) -> None:
    command = ("python", "-c", BATCHES)
    roomy = daemon.submit(program(daemon, "roomy", *command, image="auto"))
    tight = program(daemon, "tight", *command, image="auto")
    job = json.loads(tight.read_text())
    job["resources"]["shm"] = "16MiB"
    tight.write_text(json.dumps(job))
    narrow = daemon.submit(tight, end="failed")
    assert daemon.ends(roomy)["outcome"] == "succeeded", daemon.log(roomy)
    (attempt,) = daemon.ends(narrow)["attempts"]
    assert attempt["cause"] == "shared_memory", daemon.log(narrow)
    assert attempt["message"] == "shared memory (/dev/shm) is full; raise resources.shm (16MiB)"


def test_a_program_that_is_not_there_is_said_to_be_missing(daemon: Service) -> None:
    job_id = daemon.submit(program(daemon, "missing", "no-such-program"), end="failed")
    assert "not found" in daemon.ends(job_id)["why"]
    assert "no-such-program" in daemon.log(job_id)


def test_a_script_with_attach_that_was_killed_ends_with_the_bits_of_one_that_was_not(
    daemon: Service,
) -> None:
    command = ("python", "plain.py", "900")
    killed, quiet = (
        daemon.submit(
            program(daemon, name, *command, image="auto", checkpoint={"every_steps": 25, "keep": 3})
        )
        for name in ("killed", "quiet")
    )
    lineage = daemon.paths(killed).lineage_dir
    until(lambda: next(checkpoints(lineage), None), "a checkpoint", more=lambda: daemon.log(killed))
    daemon.signal_container(killed, signal.SIGKILL)
    ended = daemon.ends(killed)
    assert [attempt["cause"] for attempt in ended["attempts"]] == ["killed", "completed"]
    assert ended["attempts"][1]["resumed_from"] == ended["attempts"][0]["checkpoint_step"]
    daemon.ends(quiet)
    states = [
        verify(daemon.paths(job_id).lineage_dir / "step-00000900").files["state.pt"].sha256
        for job_id in (killed, quiet)
    ]
    assert states[0] == states[1]
    status = json.loads(daemon.paths(killed, 2).status.read_text())
    assert (status["step"], status["resumed_from"]) == (900, ended["attempts"][1]["resumed_from"])


OWN = """\
import json, os, signal, sys
from pathlib import Path

step, total = 0, 0
if "--resume" in sys.argv:
    state = json.loads((Path(sys.argv[sys.argv.index("--resume") + 1]) / "state.json").read_text())
    step, total = state["step"], state["total"]
print("from", step, flush=True)
while step < 9:
    step += 1
    total = (31 * total + step) % 1000003
    place = Path("out", f"checkpoint-{step}")
    place.mkdir(parents=True, exist_ok=True)
    (place / "state.json").write_text(json.dumps({"step": step, "total": total}))
    if step == 6 and "--resume" not in sys.argv:
        torn = Path("out", "checkpoint-7")
        torn.mkdir()
        (torn / "state.json").write_text('{"step": 7, "tot')
        os.kill(os.getpid(), signal.SIGKILL)
print("total", total, sorted(os.listdir("out"))[0])
"""


def test_a_script_that_saves_on_its_own_resumes_from_its_last_whole_checkpoint(daemon: Service) -> None:
    """It dies in the middle of a save, and its image, its code and its command know nothing of the runner."""
    own = {"files": "out/checkpoint-*", "resume_args": ["--resume", "{newest}"]}
    file = program(daemon, "own", "python", "own.py", image="auto", checkpoint=own)
    (daemon.root / "code of own" / "own.py").write_text(OWN)
    job_id = daemon.submit(file)
    ended = daemon.ends(job_id)
    assert ended["outcome"] == "succeeded"
    assert [attempt["checkpoint_step"] for attempt in ended["attempts"]] == [6, 9]
    total = 0
    for step in range(1, 10):
        total = (31 * total + step) % 1000003
    assert daemon.log(job_id, 2).splitlines() == ["from 6", f"total {total} .checkpoint-7.torn"]
