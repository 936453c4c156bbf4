"""The values of an image's variables, as the entry scripts give them back to the program."""

import subprocess
from pathlib import Path

import pytest

from runner.adapters.docker.hardening import neutralised
from runner.adapters.launch import INSIDE, SUPERVISED_ENTRY

HOSTILE = '/it\'s "a" $(touch x) `touch x`\n:/b c'
IMAGE = (
    f"LD_LIBRARY_PATH={HOSTILE}",
    "LD_EMPTY=",
    "LD_A;touch x=y",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=tesla,driver>=535",
    "NVIDIA_PRODUCT_NAME=CUDA",
    "NVIDIA_TF32_OVERRIDE=1",
    "CUDA_VISIBLE_DEVICES=3",
    "GPU_DEVICE_ORDINAL=",
    "CUDA_DEVICE_ORDER=PCI_BUS_ID",
    # Of a container of the runner of which somebody has made an image:
    "RUNNER_SECRET_ENV=HF_TOKEN",
    "RUNNER_RESUME_FROM=/x",
    "RUNNER_JOB_ID=7",
    "RUNNER_A-B;touch x=1",
    "RUNNER_IMAGE_ENV=LD_DEBUG_OUTPUT",
    "RUNNER_IMAGE_LD_DEBUG_OUTPUT=/x",
    "LD_DEBUG_OUTPUT=",
)
JOB = {
    "RUNNER_JOB_ID": "8",
    "PATH": "/usr/bin:/bin",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "NVIDIA_TF32_OVERRIDE": "0",
}


@pytest.mark.parametrize("script", [SUPERVISED_ENTRY, INSIDE], ids=["program", "beside it"])
def test_the_program_gets_the_values_of_its_image_back(tmp_path: Path, script: str) -> None:
    of_image = dict(each.split("=", 1) for each in IMAGE if ";" not in each)
    environment = {**of_image, **neutralised(IMAGE, JOB), **JOB}
    assert environment["LD_LIBRARY_PATH"] == ""
    (tmp_path / "attempt").mkdir()
    places = [str(tmp_path), *([str(tmp_path / "attempt" / "log")] if script == SUPERVISED_ENTRY else [])]
    program = ["/bin/sh", "-c", 'env -0 >"$1"', "sh", str(tmp_path / "seen")]
    command = ["/bin/sh", "-c", script, "runner", *places, *program]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True)
    seen = dict(each.split("=", 1) for each in (tmp_path / "seen").read_text().split("\0") if each)
    assert seen["LD_LIBRARY_PATH"] == HOSTILE
    assert seen["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.8 brand=tesla,driver>=535"
    assert (seen["NVIDIA_VISIBLE_DEVICES"], seen["NVIDIA_PRODUCT_NAME"]) == ("void", "CUDA")
    assert seen["NVIDIA_TF32_OVERRIDE"] == "0"  # the job's own
    assert {name: seen[name] for name in seen if name.startswith("RUNNER_")} == {"RUNNER_JOB_ID": "8"}
    assert seen["LD_DEBUG_OUTPUT"] == "/x"
    assert not {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"} & seen.keys()  # all devices of the job
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("script", [SUPERVISED_ENTRY, INSIDE], ids=["program", "beside it"])
def test_a_command_gets_the_secrets_of_its_job_as_variables(tmp_path: Path, script: str) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/HF_TOKEN").write_text("tok")
    (tmp_path / "attempt").mkdir()
    told = {**JOB, "RUNNER_SECRET_ENV": "HF_TOKEN", "RUNNER_SECRETS_DIR": str(tmp_path / "secrets")}
    places = [str(tmp_path), *([str(tmp_path / "attempt" / "log")] if script == SUPERVISED_ENTRY else [])]
    program = ["/bin/sh", "-c", 'printf %s "$HF_TOKEN" >"$1"', "sh", str(tmp_path / "seen")]
    subprocess.run(["/bin/sh", "-c", script, "runner", *places, *program], env=told, cwd=tmp_path, check=True)
    assert (tmp_path / "seen").read_text() == "tok"
