"""Whole hosts as text and trees: what a compiled NVML reads, and what looks like AMD's sysfs."""

import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml/nvml.c"
GIB = 1024**3


def compile_nvml(directory: Path, *flags: str) -> Path:
    """Return a directory with a ``libnvidia-ml.so.1`` that says what ``$RUNNER_FAKE_NVML`` does."""
    directory.mkdir(parents=True, exist_ok=True)
    output = directory / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", *flags]
    subprocess.run([*command, "-o", str(output), str(SOURCE)], check=True)
    return directory


@dataclass
class Card:
    """One NVIDIA GPU, or an instance of the one before it."""

    uuid: str
    model: str
    memory: int = 80 * GIB
    kind: str = "gpu"
    said: dict[str, object] = field(default_factory=dict)

    def say(self, **said: object) -> None:
        """Let the driver say something else about it from now on; None: nothing."""
        self.said |= said

    @property
    def lines(self) -> tuple[str, str]:
        words = " ".join(f"{key}={value}" for key, value in self.said.items() if value is not None)
        return f"{self.kind} {self.uuid} {self.memory} {self.model}\n", f"is {self.uuid} {words}\n"


@dataclass
class NvidiaHost:
    """A host of NVIDIA cards, written to the file that the compiled NVML reads."""

    cards: list[Card]
    trouble: str = ""  # "hang init -", "error 18 -", "driver 580.65.06 13000"

    def __getitem__(self, index: int) -> Card:
        return self.cards[index]

    def text(self) -> str:
        lines = [card.lines for card in self.cards]
        trouble = f"{self.trouble}\n" if self.trouble else ""
        return trouble + "".join(first for first, _ in lines) + "".join(second for _, second in lines)

    def write(self, path: Path) -> None:
        """Replace the file in one piece: the daemon may be reading it."""
        part = path.with_suffix(".part")
        part.write_text(self.text())
        part.chmod(0o644)  # the daemon need not be this user
        part.replace(path)


def _bus(index: int) -> str:
    return f"00000000:{0x17 + index * 0x10:02X}:00.0"


def _idle(index: int, **said: object) -> dict[str, object]:
    usual = {"bus": _bus(index), "util": 0, "used": 600 * 1024**2, "recovery": 0}
    return {**usual, "power": 70, "temp": 31, "ecc": 0, "throttle": 1, **said}


def h100s(count: int = 8) -> NvidiaHost:
    """Return H100s, all behind the same NVSwitches."""
    said = {"cap": "9.0", "nvlink": "18@switch"}
    return NvidiaHost(
        [Card(f"GPU-h{i}", "NVIDIA H100 80GB HBM3", said=_idle(i, **said)) for i in range(count)]
    )


def sliced_a100s(count: int = 4, slices: int = 2) -> NvidiaHost:
    """Return A100s of which the first two are in MIG mode, and the others joined in pairs."""
    cards = []
    for i in range(count):
        pair = {} if i < 2 else {"nvlink": f"12@{_bus(i ^ 1)}"}
        cards.append(Card(f"GPU-a{i}", "NVIDIA A100-SXM4-80GB", said=_idle(i, cap="8.0", **pair)))
        for number in range(slices if i < 2 else 0):
            slot = Card(f"MIG-a{i}-{number}", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40 * GIB, "mig")
            slot.say(used=20 * 1024**2)
            cards.append(slot)
    return NvidiaHost(cards)


def mixed() -> NvidiaHost:
    """Return cards of three generations without links."""
    models = (("NVIDIA H100 PCIe", 80, "9.0"), ("NVIDIA A100-PCIE-40GB", 40, "8.0"), ("Tesla T4", 15, "7.5"))
    return NvidiaHost(
        [
            Card(f"GPU-m{i}", model, memory * GIB, said=_idle(i, cap=cap))
            for i, (model, memory, cap) in enumerate(models)
        ]
    )


@dataclass
class Sysfs:
    """A tree of files like the kernel's ``/sys`` on a host of AMD devices."""

    root: Path
    count: int = 0

    def gpu(
        self, files: dict[str, object], properties: dict[str, object], links: tuple[int, ...] = ()
    ) -> None:
        """Add a GPU: its DRM node and its KFD node, with xGMI to other KFD nodes."""
        self.count += 1
        minor = 127 + self.count
        self._write(f"class/drm/renderD{minor}/device", {"vendor": "0x1002", **files})
        node = f"class/kfd/kfd/topology/nodes/{self.count}"
        lines = {"drm_render_minor": minor, **properties}
        text = "".join(f"{name} {value}\n" for name, value in lines.items())
        self._write(node, {"properties": text, "gpu_id": 1000 + self.count})
        self._write(f"{node}/io_links/0", {"properties": f"type 2\nnode_from {self.count}\nnode_to 0\n"})
        for number, other in enumerate(links, 1):
            link = f"type 11\nnode_from {self.count}\nnode_to {other}\n"
            self._write(f"{node}/io_links/{number}", {"properties": link})

    def divide(self, number: int, parts: int, serials: bool) -> None:  # noqa: FBT001 - of a newer driver
        """Divide a card, counted from 0; its further parts have platform devices and no files."""
        place = 0x1000 + number
        for part in range(parts):
            if part:
                self.count += 1
                self._write(
                    f"class/drm/renderD{127 + self.count}/device", {"modalias": "platform:amdgpu_xcp"}
                )
            node = self.count if part else number + 1
            properties = {
                "drm_render_minor": 127 + node,
                "gfx_target_version": 90402,
                "unique_id": 0xA0000001 + number + (part << 40) * serials,
                "domain": 0,
                "location_id": place | part << 28,
            }
            text = "".join(f"{name} {value}\n" for name, value in properties.items())
            kfd = f"class/kfd/kfd/topology/nodes/{node}"
            self._write(kfd, {"properties": text, "gpu_id": 1000 + node})
            size = f"heap_type 1\nsize_in_bytes {192 * GIB // parts}\n"
            self._write(f"{kfd}/mem_banks/0", {"properties": size})

    def use(self, number: int, pid: int, amount: int, queues: int = 1) -> None:
        """Let a process have memory and queues on the device with this number, from 0 on."""
        process = f"class/kfd/kfd/proc/{pid}"
        for each in range(self.count):
            self._write(process, {f"vram_{1001 + each}": amount if each == number else 0})
        for queue in range(queues):
            self._write(f"{process}/queues/{queue}", {"gpuid": 1001 + number})

    def say(self, number: int, **files: object) -> None:
        self._write(f"class/drm/renderD{128 + number}/device", files)

    def _write(self, directory: str, files: Mapping[str, object]) -> None:
        path = self.root / directory
        path.mkdir(parents=True, exist_ok=True)
        for name, said in files.items():
            (path / name).write_bytes(said if isinstance(said, bytes) else f"{said}\n".encode())


def gpu_metrics(version: tuple[int, int], *, status: int = 0, counters: tuple[int, ...] = (0,) * 7) -> bytes:
    """Return a table as the kernel gives it, in which all is unknown but what holds clocks down."""
    table = bytearray(b"\xff" * METRICS_BYTES[version])
    struct.pack_into("=HBB", table, 0, len(table), *version)
    if version == (3, 0):
        struct.pack_into("=7I", table, 228, *counters)
    elif version in {(1, 3), (2, 2), (2, 3), (2, 4)}:
        struct.pack_into("=Q", table, 112 if version == (1, 3) else 120, status)
    return bytes(table)


METRICS_BYTES = {(1, 3): 120, (1, 6): 384, (2, 1): 120, (2, 2): 128, (2, 3): 152, (2, 4): 168, (3, 0): 264}
"""The kernel's structures by version; of 1.6 and 2.1 nothing is read."""


def mi300xs(root: Path, count: int = 8) -> Sysfs:
    """Return MI300X, each joined to all the others by xGMI."""
    sysfs = Sysfs(root)
    for i in range(1, count + 1):
        files: dict[str, object] = {
            "unique_id": f"{0xA0000000 + i:016x}",
            "product_name": "AMD Instinct MI300X OAM",
            "numa_node": (i - 1) // 4,
            "gpu_busy_percent": 0,
            "mem_info_vram_total": 192 * GIB,
            "mem_info_vram_used": 300 * 1024**2,
            "mem_info_gtt_total": 512 * GIB,
            "mem_info_gtt_used": 0,
            "gpu_metrics": gpu_metrics((1, 6)),
        }
        others = tuple(other for other in range(1, count + 1) if other != i)
        sysfs.gpu(files, {"gfx_target_version": 90402, "simd_count": 1216}, others)
        path = f"class/drm/renderD{127 + i}/device"
        sysfs._write(f"{path}/hwmon/hwmon{i + 3}", {"power1_average": 140_000_000, "temp1_input": 38_000})
        sysfs._write(f"{path}/ras", {"umc_err_count": "ue: 0\nce: 2"})
    return sysfs


def strix_halo(root: Path) -> Sysfs:
    """Return an APU whose memory for compute is the host's own (GTT)."""
    sysfs = Sysfs(root)
    files: dict[str, object] = {
        "numa_node": -1,
        "gpu_busy_percent": 3,
        "mem_info_vram_total": 512 * 1024**2,
        "mem_info_vram_used": 200 * 1024**2,
        "mem_info_gtt_total": 120 * GIB,
        "mem_info_gtt_used": 5 * GIB,
        "gpu_metrics": gpu_metrics((3, 0)),
    }
    sysfs.gpu(files, {"gfx_target_version": 110501, "simd_count": 80})
    return sysfs
