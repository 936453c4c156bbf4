"""The files of five owners: read, trained from their checkpoints, killed, resumed, opened by their code."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from jobs.contract import WORKLOADS, kind_of
from tests.fakes.workloads.owners import AGI2, ATFT, OWNERS, POSER
from tests.unit.jobs.conftest import JobDir


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers
@pytest.mark.parametrize("name", OWNERS)
def test_the_files_of_an_owner_are_trained_killed_resumed_and_opened_by_his_code(
    name: str,
    tmp_path: Path,
    before_step: Callable[[dict[int, Callable[[], None]]], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "his").mkdir()
    owner = OWNERS[name](tmp_path / "his")
    fields: dict[str, Any] = {
        "steps": 8, "warmup_steps": 2, "eval_every": 4, "eval_batches": 2, "log_every": 2,
        **owner.workload, "init_from": f"../his/{owner.init}",
    }  # fmt: skip
    job = JobDir(tmp_path / "run", tmp_path)
    init = str(tmp_path / "his" / str(owner.init))

    def attempt(lineage: int) -> int:
        paths = job.attempt(lineage=lineage, init_weights=init, workload={})
        spec = job.spec(lineage=lineage, attempt=job.attempts, init_weights=init, workload={})
        whole = spec.model_dump(mode="json") | {"workload": fields}
        paths.spec.write_text(type(spec).model_validate(whole).model_dump_json())
        return job.run(paths)

    assert attempt(1) == 0, capfd.readouterr()
    said = capfd.readouterr().out
    assert f"begins with the weights of ../his/{owner.init}" in said
    if "clean" in fields:
        assert "clean: " in said

    def kill() -> None:
        raise KeyboardInterrupt

    before_step({5: kill})
    with pytest.raises(KeyboardInterrupt):
        attempt(2)
    before_step({})
    assert attempt(2) == 0
    assert job.result().resumed_from == 4
    assert job.run_weights(1) == job.run_weights(2)

    final = torch.load(job.lineage(2) / "final/weights.pt", weights_only=True)
    found = owner.reads(job.lineage(2) / "export")
    assert found
    for tensor_name, tensor in found.items():
        assert torch.equal(final[tensor_name], tensor), tensor_name


def test_the_job_files_of_the_pages_are_valid_and_have_the_names_of_the_owners() -> None:
    pages = (Path(__file__).parents[3] / "docs/reference/workloads").glob("*.md")
    texts = [page.read_text().partition("## If this is your project")[2] for page in pages]
    blocks = [block for text in texts for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    found = {each["kind"]: each for each in (yaml.safe_load(block)["workload"] for block in blocks)}
    plans = {kind_of(plan): plan for plan in WORKLOADS if kind_of(plan) in found}
    assert len(plans) == len(blocks) == len(OWNERS)
    for kind, plan in plans.items():
        assert plan.model_validate(found[kind]).export is not None
    assert found["imu_stream"]["init_map"]["rename"] == POSER
    assert found["causal_lm"]["init_map"]["rename"] == found["causal_lm"]["export"]["rename"] == AGI2
    assert set(found["graph_forecast"]["export"]["rename"].items()) <= set(ATFT.items())
