"""The device of an attempt, and what it falls back to where it cannot do what was asked."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from jobs.contract import ExitCode, Profile
from jobs.training import device
from jobs.training.device import Device, is_out_of_memory, out_of_memory_named
from jobs.training.failures import DeviceOutOfMemory, InvalidSpec
from jobs.training.switches import Switches
from tests.unit.jobs.conftest import JobDir

Card = Callable[[tuple[int, int]], Device]


@pytest.fixture(autouse=True)
def _numbers_as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[1], benchmark


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """Return a function that puts in a card of a compute capability."""
    monkeypatch.setattr(device, "has_expandable_segments", lambda: False)

    def put_in(capability: tuple[int, int]) -> Device:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: capability >= (8, 0))
        return Device(torch.device("cuda", 0), "a card", 1)

    return put_in


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_has_the_card_of_its_rank_named_with_memory_and_capability(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    cards = [
        SimpleNamespace(name="NVIDIA H100", total_memory=80 * 2**30, major=9, minor=0),
        SimpleNamespace(name="NVIDIA T4", total_memory=15 * 2**30, major=7, minor=5),
    ]
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: cards[index])
    found = device._select("cuda", 4, rank)
    assert (found.torch_device, chosen) == (torch.device("cuda", rank), [rank])
    assert (found.name, found.hardware) == (
        ("NVIDIA H100", "80.0 GiB, compute capability 9.0"),
        ("NVIDIA T4", "15.0 GiB, compute capability 7.5"),
    )[rank]
    with pytest.raises(InvalidSpec, match="rank 2 has no device; torch sees 2"):
        device._select("cuda", 4, 2)


@pytest.mark.parametrize(
    ("capability", "wanted", "used"),
    [
        ((9, 0), "auto", "bf16"),
        ((7, 5), "auto", "fp16"),
        ((7, 0), "auto", "fp16"),
        ((6, 1), "auto", "fp32"),
        ((7, 5), "bf16", "fp32"),
        ((7, 5), "tf32", "fp32"),
        ((7, 5), "fp16", "fp16"),
        ((8, 0), "bf16", "bf16"),
        ((8, 0), "tf32", "tf32"),
        ((8, 0), "fp32", "fp32"),
    ],
)
def test_a_card_gets_the_precision_it_has(
    card: Card, capability: tuple[int, int], wanted: str, used: str
) -> None:
    here, switches = card(capability), Switches(Profile.model_validate({"precision": wanted}))
    device._set_precision(here, switches)
    assert here.precision == used
    fell_back = [line for line in switches.fallbacks if line.startswith(f"precision {wanted}: using {used}")]
    assert len(fell_back) == (wanted != used)


@pytest.mark.parametrize(("wanted", "used"), [("auto", "fp32"), ("tf32", "fp32"), ("fp16", "fp16")])
def test_a_cpu_has_none_of_the_faster_ones_natively(wanted: str, used: str) -> None:
    here = Device(torch.device("cpu"), "a CPU", 1)
    switches = Switches(Profile.model_validate({"precision": wanted}))
    device._set_precision(here, switches)
    assert (here.precision, bool(switches.fallbacks)) == (used, wanted != used)


@pytest.mark.parametrize(("capability", "used"), [((8, 6), True), ((7, 5), False)])
def test_tf32_is_only_where_there_is_hardware_for_it(
    card: Card, capability: tuple[int, int], *, used: bool
) -> None:
    switches = Switches(Profile(tf32_matmul=True, tf32_cudnn=True))
    device._set_precision(card(capability), switches)
    assert torch.get_float32_matmul_precision() == ("high" if used else "highest")
    assert torch.backends.cudnn.allow_tf32 is used
    assert len(switches.fallbacks) == (0 if used else 2)


def test_fp32_is_fp32_in_cudnn_too(card: Card) -> None:
    torch.backends.cudnn.allow_tf32 = True
    device._set_precision(card((9, 0)), Switches(Profile()))
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("tf32", torch.float32)])
def test_the_compute_dtype_is_what_a_product_comes_out_in(precision: str, dtype: torch.dtype) -> None:
    here = Device(torch.device("cpu"), "a CPU", 1, precision)
    with here.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == here.compute_dtype == dtype


def test_an_accelerator_that_is_not_there_ends_with_78(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert job.train(accelerator="cuda") == ExitCode.INVALID_SPEC
    assert "sees no device; check the image" in job.result().message


def test_cudnn_benchmarks_only_where_there_is_cudnn(card: Card) -> None:
    on_cpu, on_card = (Switches(Profile(cudnn_benchmark=True, deterministic=False)) for _ in range(2))
    device._set_cudnn(Device(torch.device("cpu"), "a CPU", 1), on_cpu)
    device._set_cudnn(card((9, 0)), on_card)
    assert on_cpu.report()["cudnn_benchmark"].applied == "false"
    assert on_card.report()["cudnn_benchmark"].verified
    assert torch.backends.cudnn.benchmark


@pytest.mark.parametrize("there", [True, False])
def test_what_the_environment_should_have_put_in_force_is_looked_at(
    card: Card, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, _: shares.append(share))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: shares[-1])
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1" if there else "0")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # nobody's word for it
    monkeypatch.setattr(device, "has_expandable_segments", lambda: there)
    profile = Profile(launch_blocking=True, allocator="expandable_segments", memory_fraction=0.5)
    switches = Switches(profile)
    device._set_process(card((9, 0)), switches, None)
    report = switches.report()
    assert [report[name].verified for name in ("launch_blocking", "allocator")] == [there] * 2
    assert report["allocator"].applied == ("expandable_segments" if there else "default")
    assert shares == [0.5]


@pytest.mark.parametrize(
    ("asked", "part", "share"),
    [(None, 20 * 1024**3, 0.25), (0.5, 20 * 1024**3, 0.25), (0.1, 20 * 1024**3, 0.1), (0.5, None, 0.5)],
)
def test_a_job_that_shares_a_device_keeps_to_its_part(
    card: Card, monkeypatch: pytest.MonkeyPatch, asked: float | None, part: int | None, share: float
) -> None:
    shares: list[float] = []
    whole = SimpleNamespace(total_memory=80 * 1024**3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: whole)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, _: shares.append(share))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: shares[-1])
    switches = Switches(Profile(memory_fraction=asked))
    device._set_process(card((9, 0)), switches, part)
    assert shares == [share]
    assert switches.report()["memory_fraction"].applied == str(share)


@pytest.mark.parametrize("asked", [1024**3, 200 * 1024**3])
def test_a_part_is_never_more_than_the_whole(card: Card, monkeypatch: pytest.MonkeyPatch, asked: int) -> None:
    shares: list[float] = []
    whole = SimpleNamespace(total_memory=80 * 1024**3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: whole)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, _: shares.append(share))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: shares[-1])
    device._set_process(card((9, 0)), Switches(Profile()), asked)
    assert 0 < shares[0] <= 1


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("x"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("HIP error: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("CUDA error: out of memory"), False),
        (RuntimeError("shapes cannot be multiplied"), False),
    ],
)
def test_only_memory_is_out_of_memory(error: Exception, *, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one
    with (
        pytest.raises(DeviceOutOfMemory if is_one else type(error)),
        out_of_memory_named(Device(torch.device("cpu"), "a CPU", 1)),
    ):
        raise error


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_precision_in_force_is_reported(job: JobDir, precision: str) -> None:
    spec = job.spec(profile={"precision": precision})
    switches = Switches(spec.profile)
    device.prepare(spec, switches)
    assert switches.report()["precision"].applied == precision


@pytest.mark.parametrize("deterministic", [False, True])
def test_cudnn_is_deterministic_only_where_the_profile_is(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, *, deterministic: bool
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    spec = job.spec(profile={"deterministic": deterministic})
    device.prepare(spec, Switches(spec.profile))
    assert torch.backends.cudnn.deterministic is deterministic
