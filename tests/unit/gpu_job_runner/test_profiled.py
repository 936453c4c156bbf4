"""A profile in a script of one's own: applied to the process, observed, and reported as a built-in one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpu_job_runner import profiled
from gpu_job_runner.attach import apply_profile
from gpu_job_runner.profiled import Applied
from jobs.contract import Effective, Profile, Switch


@pytest.fixture(autouse=True)
def _process_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RUNNER_ACCELERATOR", "cpu")
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    numbers = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    cudnn = torch.backends.cudnn.deterministic
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(exact)
    torch.set_float32_matmul_precision(numbers[0])
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = numbers[1], cudnn


def applied(directory: Path, **switches: Any) -> Applied:
    return Applied(Profile(**switches).model_dump(mode="json"), directory)


def reported(directory: Path) -> Effective:
    return Effective.model_validate_json((directory / "effective.json").read_bytes())


def switch(directory: Path, name: str) -> Switch:
    return reported(directory).switches[name]


def test_the_profile_of_the_attempt_is_found_where_the_runner_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"profile": Profile(name="mine", precision="bf16").model_dump(mode="json")}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    monkeypatch.setenv("RUNNER_ATTEMPT_DIR", str(tmp_path))
    assert apply_profile().precision == "bf16"
    assert switch(tmp_path, "precision").requested == "bf16"


def test_without_a_runner_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_ATTEMPT_DIR", raising=False)
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    found, model = apply_profile(), nn.Linear(2, 2)
    with found.forward():
        assert model(torch.ones(1, 2)).dtype == torch.float32
    assert found.compile(model) is model
    assert (found.loader(), found.optimizer(), found.rows(8)) == ({}, {}, 8)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


def test_settings_of_the_process_are_applied_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    applied(tmp_path, deterministic=True, tf32_matmul=True, precision="auto")
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()
    assert (switch(tmp_path, "threads").applied, switch(tmp_path, "threads").verified) == ("1", True)
    assert (switch(tmp_path, "deterministic").applied, switch(tmp_path, "deterministic").verified) == (
        "true",
        True,
    )
    tf32 = switch(tmp_path, "tf32_matmul")
    assert (tf32.requested, tf32.applied, tf32.note) == ("true", "false", "the device has no TF32")
    assert "tf32_matmul true: using false: the device has no TF32" in reported(tmp_path).fallbacks


def test_what_another_part_of_the_script_sets_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    applied(tmp_path)
    assert switch(tmp_path, "threads").verified is False


def test_the_first_forward_pass_shows_precision_and_attention(tmp_path: Path) -> None:
    found = applied(tmp_path, precision="bf16")
    assert switch(tmp_path, "precision").verified is None
    q = torch.ones(1, 2, 4, 8, requires_grad=True)
    with found.forward():
        assert (q @ q.mT).dtype == torch.bfloat16
        functional.scaled_dot_product_attention(q, q, q)
    assert switch(tmp_path, "precision").verified
    attention = switch(tmp_path, "attention")
    assert (attention.applied, attention.verified) == ("fused", True)
    assert attention.note == "ran scaled_dot_product_flash_attention_for_cpu"


def test_attention_that_falls_back_to_math_is_told(tmp_path: Path) -> None:
    found = applied(tmp_path)
    q = torch.ones(1, 2, 4, 8, requires_grad=True)
    with found.forward(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        functional.scaled_dot_product_attention(q, q, q)
    attention = switch(tmp_path, "attention")
    assert (attention.requested, attention.applied, attention.verified) == ("fused", "math", False)
    assert attention.note == "ran math"


def test_a_script_without_attention_says_nothing_about_it(tmp_path: Path) -> None:
    with applied(tmp_path).forward():
        pass
    assert switch(tmp_path, "attention").applied is None


def test_arguments_are_those_of_the_profile(tmp_path: Path) -> None:
    found = applied(
        tmp_path, loader_workers=2, loader_prefetch=4, placement="pinned", optimizer="fused", micro_batch=8
    )
    assert found.loader() == {
        "num_workers": 2, "pin_memory": False, "prefetch_factor": 4, "persistent_workers": True,
    }  # fmt: skip
    assert found.optimizer() == {"fused": True}
    assert applied(tmp_path, optimizer="loop").optimizer() == {"foreach": False}
    assert (found.rows(32), found.rows(4)) == (8, 4)
    assert found.rows(20) == 8
    effective = reported(tmp_path)
    assert (effective.micro_batch, effective.accumulation) == (8, 3)
    assert effective.switches["loader_workers"].applied == "2"
    assert effective.switches["placement"].applied == "host"
    assert effective.switches["loader_workers"].verified is None


def test_a_model_is_compiled_in_the_mode_of_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def compile_it(model: nn.Module, **options: object) -> nn.Module:
        asked.append(options)
        return model

    monkeypatch.setattr(torch, "compile", compile_it)
    monkeypatch.setattr(profiled, "compiled_graphs", lambda: 3)
    monkeypatch.setattr(profiled, "skipped_cuda_graphs", lambda: 1)
    found = applied(tmp_path, compile="reduce-overhead")
    with found.forward():
        found.compile(nn.Linear(2, 2))
    assert asked == [{"mode": "reduce-overhead", "fullgraph": False, "dynamic": False}]
    compiled = switch(tmp_path, "compile")
    assert (compiled.applied, compiled.verified) == ("reduce-overhead", False)
    assert compiled.note == "3 graph(s), 1 of them without CUDA graphs"


def test_a_compilation_without_a_graph_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    found = applied(tmp_path, compile="default")
    found.compile(nn.Linear(2, 2))
    with found.forward():
        pass
    assert (switch(tmp_path, "compile").applied, switch(tmp_path, "compile").verified) == ("off", False)


@pytest.mark.parametrize("answer", [True, False, None])
def test_the_allocator_is_asked(monkeypatch: pytest.MonkeyPatch, *, answer: bool | None) -> None:
    settings = {} if answer is None else {"expandable_segments": answer}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"allocator_settings": settings})
    assert profiled.has_expandable_segments() is answer
