"""torch.compile in the hardened container: compiler, headers, an executable /tmp, HOME, USER and caches."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from images.store import ImageStore
from jobs.contract import Effective
from tests.fakes.daemon.service import Service, service

pytestmark = pytest.mark.engine


@pytest.fixture
def daemon(engine: str, base_image: str, tmp_path: Path) -> Iterator[Service]:
    assert engine
    assert base_image
    ImageStore().ensure("cpu", tmp_path / "log.txt")
    with service(executor="docker") as made:
        yield made.start()


def test_a_compiled_step_really_compiles_behind_all_walls(daemon: Service) -> None:
    profile = {"extends": "cpu", "compile": True, "threads": 1}
    resources = {"cpus": 2, "memory": "4GiB"}
    quick = {
        "TORCHINDUCTOR_VEC_ISA_OK": "0",  # else it compiles to find out what the processor can
        "AOT_INDUCTOR_DEBUG_COMPILE": "1",  # without optimisation
    }
    file = daemon.training("compiled", 4, profile=profile, resources=resources, environment=quick)
    job_id = daemon.submit(file)
    assert daemon.ends(job_id, 240)["outcome"] == "succeeded", daemon.log(job_id)
    effective = Effective.model_validate_json(daemon.paths(job_id).effective.read_bytes())
    assert (effective.switches["compile"].applied, effective.fallbacks) == ("default", ())
    assert effective.compile_graphs >= 1
