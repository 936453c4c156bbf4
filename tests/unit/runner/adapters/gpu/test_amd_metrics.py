"""The binary table of an AMD device: believed where version and size are known, and unknown otherwise."""

import ctypes
from pathlib import Path

import pytest

from runner.adapters.gpu.amd import AmdHealth, AmdProbe
from runner.adapters.gpu.amd_metrics import COUNTERS_AT, STATUS_AT, throttle_reasons
from tests.fakes.gpu.hosts import Sysfs, gpu_metrics, mi300xs, strix_halo

U16, U32, U64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
DISCRETE = (U32, U16 * 10, U64, U64, U16 * 14, U32, U16 * 4, U32, U32, U16 * 4, U64, U16 * 4, U64)
APU = (U32, U16 * 14, U64, U16 * 12, U16 * 12, U16 * 10, U32, U16 * 4, U64)
NEW_APU = (
    U32, U16 * 49, U64, U32, U16, U32, U32, U32, U32, U16 * 19, U16 * 8, U16 * 18, U32 * 7, U32,
)  # fmt: skip
"""The kernel's structures as the types of their members; the compiler puts each at its place."""


def laid_out(*members: type) -> list[int]:
    """Return where each member begins, and the size of all."""
    fields = [(f"m{i}", member) for i, member in enumerate(members)]
    made = type("Table", (ctypes.Structure,), {"_fields_": fields})
    return [*(getattr(made, name).offset for name, _ in fields), ctypes.sizeof(made)]


def test_a_status_is_where_the_kernels_structure_has_it() -> None:
    *_, at, size = laid_out(*DISCRETE)
    assert STATUS_AT[1, 3] == (size, at) == (120, 112)
    for version, more in (((2, 2), ()), ((2, 3), (U16 * 12,)), ((2, 4), (U16 * 12, U16 * 6))):
        places = laid_out(*APU, *more)
        assert STATUS_AT[version] == (places[-1], places[len(APU) - 1])
    *_, at, _, size = laid_out(*NEW_APU)
    assert COUNTERS_AT[3, 0] == (size, at)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        ((), ()),
        ((0,), ("power cap",)),
        ((7, 6), ("power cap",)),
        ((16,), ("current limit",)),
        ((35, 36, 45), ("heat",)),
        ((47,), ("heat (hardware)",)),
        ((57,), ("hardware slowdown",)),
        ((1, 23, 32, 46, 56), ("power cap", "current limit", "heat", "heat (hardware)", "hardware slowdown")),
        ((8, 31, 48, 63), ()),  # bits that nobody has given a meaning
    ],
)
@pytest.mark.parametrize("version", sorted(STATUS_AT))
def test_what_holds_clocks_down_is_read_from_the_bits(
    version: tuple[int, int], bits: tuple[int, ...], words: tuple[str, ...]
) -> None:
    assert throttle_reasons(gpu_metrics(version, status=sum(1 << bit for bit in bits))) == (words, None)


def test_a_status_that_the_driver_cannot_tell_is_unknown() -> None:
    assert throttle_reasons(gpu_metrics((1, 3), status=2**64 - 1)) == (None, None)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x78\x00\x01",
        gpu_metrics((1, 3))[:-1],
        gpu_metrics((1, 6)),
        gpu_metrics((2, 1)),
        b"\x80\x06" + gpu_metrics((1, 3))[2:] + bytes(1544),  # a known version, and another layout
        b"\x78\x00\x09\x09" + gpu_metrics((1, 3))[4:],
        gpu_metrics((3, 0))[:-1],
    ],
)
def test_of_a_table_that_nobody_knows_nothing_is_said(raw: bytes) -> None:
    assert throttle_reasons(raw) == (None, None)


def test_counters_tell_what_has_held_clocks_down_since_the_look_before() -> None:
    first = (5, 0, 0, 0, 0, 0, 0)
    assert throttle_reasons(gpu_metrics((3, 0), counters=first)) == (None, first)
    assert throttle_reasons(gpu_metrics((3, 0), counters=first), first) == ((), first)
    later = (5, 0, 7, 1, 0, 0, 2)
    assert throttle_reasons(gpu_metrics((3, 0), counters=later), first) == (("power cap", "heat"), later)
    assert throttle_reasons(gpu_metrics((3, 0), counters=first), later) == (
        None,
        first,
    )  # the device was reset


def throttled(health: AmdHealth, root: Path) -> list[tuple[str, ...] | None]:
    found = health.read(AmdProbe(root, root / "dev").devices())
    return [each.throttled for each in found.values()]


def test_a_look_tells_what_holds_the_clocks_of_a_card_down(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    for number, status in enumerate((0, 1 | 1 << 36)):
        files: dict[str, object] = {
            "unique_id": f"{number:016x}",
            "gpu_metrics": gpu_metrics((1, 3), status=status),
        }
        sysfs.gpu(files, {"gfx_target_version": 110000})
    sysfs.gpu({"unique_id": "f" * 16}, {"gfx_target_version": 90006})
    assert throttled(AmdHealth(tmp_path), tmp_path) == [(), ("power cap", "heat"), None]


def test_an_apu_is_compared_with_its_own_look_before(tmp_path: Path) -> None:
    sysfs, health = strix_halo(tmp_path), AmdHealth(tmp_path)
    assert throttled(health, tmp_path) == [None]
    assert throttled(health, tmp_path) == [()]
    sysfs.say(0, gpu_metrics=gpu_metrics((3, 0), counters=(0, 9, 0, 0, 0, 0, 0)))
    assert throttled(health, tmp_path) == [("power cap",)]
    (tmp_path / "class/drm/renderD128/device/gpu_metrics").unlink()
    assert throttled(health, tmp_path) == [None]


def test_of_a_card_whose_driver_fills_in_no_status_nothing_is_said(tmp_path: Path) -> None:
    mi300xs(tmp_path, 1)
    assert throttled(AmdHealth(tmp_path), tmp_path) == [None]
