"""The five owners' jobs by the commands of their page, from checkpoint to their own reader."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.daemon.service import service
from tests.fakes.workloads.owners import OWNERS, Owner

SHORT: dict[str, Any] = {
    "steps": 8, "warmup_steps": 2, "eval_every": 4, "eval_batches": 2, "log_every": 2,
}  # fmt: skip


def of(place: Path, name: str) -> Owner:
    """Write the files of an owner where a job of root, which is another user, can read them."""
    place.mkdir()
    owner = OWNERS[name](place)
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return owner


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers
def test_the_commands_of_the_page_lead_from_their_checkpoints_to_their_readers() -> None:
    with service(executor="process") as daemon:
        daemon.start()
        owners = {name: of(Path(daemon.root, name), name) for name in OWNERS}
        for name, owner in owners.items():
            workload = {**SHORT, **owner.workload, "init_from": owner.init}
            resources = {"cpus": 1, "memory": "1GiB"}
            daemon.submit(daemon.file(name, Path(daemon.root, name), workload=workload, resources=resources))
        daemon.reaches("mobileposer", "running")
        daemon.runner("hold", "mobileposer")
        daemon.runner("wait", "mobileposer", code=12)
        daemon.runner("release", "mobileposer")
        for name, owner in owners.items():
            daemon.runner("wait", name)
            place = Path(daemon.root, name)
            daemon.runner("cp", f"{name}:/job/lineages/1/export", str(place))
            job = daemon.job(name)
            assert f"begins with the weights of {place}/{owner.init}" in daemon.log(job["id"], job["attempt"])
            assert daemon.answer("show", name, "--json")["result"]["weights_sha256"]
            final = torch.load(Path(daemon.paths(job["id"]).final_dir, "weights.pt"), weights_only=True)
            found = owner.reads(place / "export")
            assert found
            assert all(torch.equal(final[each], tensor) for each, tensor in found.items())
