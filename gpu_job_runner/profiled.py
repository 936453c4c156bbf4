"""Applies the profile of a job to torch, for a script of the user's own: ``attach.apply_profile()``.

What was requested, applied and verified is written to ``effective.json``, as a built-in workload does it.  A
setting of the process is read back; precision, attention and compilation are observed in the first forward
pass.  What is handed to the script as arguments cannot be observed here, and is reported so.

This module is one file that needs only torch and Python 3.8 or newer.  Copy it beside ``attach.py`` if you
copy that.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
GIVEN = "an argument that the script is given"
MATH = "math"


class Applied:
    """The profile of a job in this process.

    A switch that the script never asks for is reported as not used.  Without a runner the profile is empty,
    and nothing is changed.
    """

    def __init__(self, profile: Mapping[str, Any], directory: Path | None = None) -> None:
        self.profile = dict(profile)
        self.switches: dict[str, dict[str, Any]] = {
            name: {"requested": _word(value), "applied": None, "verified": None, "note": ""}
            for name, value in profile.items()
            if name not in {"name", "environment"}
        }
        self._directory = directory if int(os.environ.get("RANK") or 0) == 0 else None
        self._rows: tuple[int, int] | None = None
        self._compiled: dict[str, Any] = {}
        self._seen = not profile
        on_cpu = os.environ.get("RUNNER_ACCELERATOR") == "cpu" or not torch.cuda.is_available()
        self.device = torch.device("cpu" if on_cpu else "cuda:{}".format(os.environ.get("LOCAL_RANK") or 0))
        self.precision, why = self._best_precision()
        if profile:
            self._note("precision", self.precision, note=why)
            self._apply()
            self._report()

    # --- for the script to call

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Run a forward pass in the profile's precision; leave it before the backward pass."""
        with contextlib.ExitStack() as stack:
            if self.precision in DTYPES:
                stack.enter_context(torch.autocast(self.device.type, dtype=DTYPES[self.precision]))
            watch = not self._seen
            kernels = AttentionKernels()
            if watch and not self._compiled:  # compiled code does not pass through it
                stack.enter_context(kernels)
            yield
            if watch:
                self._seen = True
                self._verify_forward(kernels.names)

    def compile(self, model: Any) -> Any:
        """Return the model, compiled if the profile has it."""
        mode = self.profile.get("compile", "off")
        if mode == "off":
            return model
        self._compiled = {name: self.profile[f"compile_{name}"] for name in ("fullgraph", "dynamic")}
        return torch.compile(model, mode=mode, **self._compiled)

    def loader(self) -> dict[str, Any]:
        """Return arguments for ``DataLoader``: workers, prefetching and pinned memory."""
        if not self.profile:
            return {}
        workers, placement = self.profile["loader_workers"], self.profile["placement"]
        pinned = placement != "host" and self.device.type != "cpu"
        given: dict[str, Any] = {"num_workers": workers, "pin_memory": pinned}
        self._note("loader_workers", workers, note=GIVEN)
        where = "pinned" if pinned else "host"
        self._note("placement", where, note=GIVEN if where == placement else "all that a DataLoader has here")
        for switch, name in (
            ("loader_prefetch", "prefetch_factor"),
            ("loader_persistent", "persistent_workers"),
        ):
            if workers:
                given[name] = self.profile[switch]
                self._note(switch, given[name], note=GIVEN)
        self._report()
        return given

    def optimizer(self) -> dict[str, bool]:
        """Return arguments for an optimiser of torch: ``fused`` or ``foreach``."""
        if not self.profile:
            return {}
        self.given({"optimizer": self.profile["optimizer"]})
        fused = self.profile["optimizer"] == "fused"
        return {"fused": True} if fused else {"foreach": self.profile["optimizer"] == "foreach"}

    def scaler(self) -> torch.amp.GradScaler:
        """Return a gradient scaler, which scales only where the precision is fp16."""
        return torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")

    def rows(self, batch: int) -> int:
        """Return the rows of one forward pass, for a step of ``batch`` rows."""
        wanted = self.profile.get("micro_batch")
        rows = min(wanted, batch) if isinstance(wanted, int) else batch
        if self.profile:
            self._rows = (rows, -(-batch // rows))
            self._note("micro_batch", rows, note=GIVEN)
            self._report()
        return rows

    def given(self, switches: Mapping[str, Any]) -> None:
        """Record switches that the script or its framework was given as arguments."""
        for name, value in switches.items():
            self._note(name, value, note=GIVEN)
        self._report()

    # --- applied to the process, and read back

    def _best_precision(self) -> tuple[str, str]:
        """Return the precision to use, and the reason if it is not the requested one."""
        wanted = str(self.profile.get("precision", "fp32"))
        if self.device.type == "cpu":
            lacks = wanted in {"auto", "tf32"}
            return ("fp32", "a CPU has none of the faster ones natively") if lacks else (wanted, "")
        capability = torch.cuda.get_device_capability(self.device)
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if wanted == "auto":
            best = "bf16" if has_bf16 else "fp16" if capability >= (7, 0) else "fp32"
            return best, "the best that the device has natively"
        if (wanted == "bf16" and not has_bf16) or (wanted == "tf32" and capability < (8, 0)):
            return "fp32", f"the device has no {wanted}"
        return wanted, ""

    def _apply(self) -> None:
        threads = int(os.environ.get("OMP_NUM_THREADS") or torch.get_num_threads())
        torch.set_num_threads(threads)
        self._note("threads", threads, verified=torch.get_num_threads() == threads)
        wanted = self.profile["deterministic"]
        if wanted:
            torch.use_deterministic_algorithms(mode=True)
            torch.backends.cudnn.deterministic = True
        exact = torch.are_deterministic_algorithms_enabled()
        self._note("deterministic", exact, verified=exact == wanted)
        self._apply_tf32()
        if self.device.type != "cpu":
            self._apply_to_device()

    def _apply_tf32(self) -> None:
        on_gpu = self.device.type != "cpu"
        has_it = on_gpu and torch.cuda.get_device_capability(self.device) >= (8, 0)
        asked = {
            name: self.profile[name] or self.profile["precision"] == "tf32"
            for name in ("tf32_matmul", "tf32_cudnn")
        }
        torch.set_float32_matmul_precision("high" if has_it and asked["tf32_matmul"] else "highest")
        torch.backends.cudnn.allow_tf32 = has_it and asked["tf32_cudnn"]
        in_force = {
            "tf32_matmul": torch.get_float32_matmul_precision() != "highest",
            "tf32_cudnn": bool(torch.backends.cudnn.allow_tf32),
        }
        for name, value in in_force.items():
            lacks = "the device has no TF32" if asked[name] and not has_it else ""
            self._note(name, value, verified=value == (has_it and asked[name]), note=lacks)

    def _apply_to_device(self) -> None:
        torch.cuda.set_device(self.device)
        torch.backends.cudnn.benchmark = self.profile["cudnn_benchmark"]
        self._note("cudnn_benchmark", torch.backends.cudnn.benchmark, verified=True)
        share = self.profile["memory_fraction"]
        if share is not None:
            torch.cuda.set_per_process_memory_fraction(share, self.device)
            found = torch.cuda.get_per_process_memory_fraction(self.device)
            self._note("memory_fraction", found, verified=abs(found - share) < 1e-6)
        grows = has_expandable_segments()
        allocator = None if grows is None else "expandable_segments" if grows else "default"
        verified = None if allocator is None else allocator == self.profile["allocator"]
        self._note("allocator", allocator, verified=verified, note="as the allocator says")
        blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
        self._note("launch_blocking", blocking, verified=blocking == self.profile["launch_blocking"])

    # --- observed

    def _verify_forward(self, kernels: list[str]) -> None:
        """Record what the first forward pass has shown; it is still in the autocast of it."""
        one = torch.ones(1, 1, device=self.device)
        seen = (one @ one).dtype == DTYPES.get(self.precision, torch.float32)
        self._note("precision", self.precision, verified=seen, note=self.switches["precision"]["note"])
        if kernels:
            is_fused = MATH not in kernels
            note = f"ran {', '.join(sorted(set(kernels)))}"
            wanted = self.profile["attention"] == "fused"
            self._note("attention", "fused" if is_fused else MATH, verified=is_fused == wanted, note=note)
        if self._compiled:
            self._verify_compiled()
        self._report()

    def _verify_compiled(self) -> None:
        graphs, skipped = compiled_graphs(), skipped_cuda_graphs()
        applied = self.profile["compile"] if graphs else "off"
        note = f"{graphs} graph(s)" + (f", {skipped} of them without CUDA graphs" if skipped else "")
        self._note("compile", applied, verified=graphs > 0 and not skipped, note=note)
        for name, value in self._compiled.items():
            self._note(f"compile_{name}", value, note=GIVEN)

    # --- reported

    def _note(self, name: str, value: Any, *, verified: bool | None = None, note: str = "") -> None:
        found = {"applied": None if value is None else _word(value), "verified": verified, "note": note}
        self.switches[name].update(found)

    def _report(self) -> None:
        """Write what is known until now."""
        if self._directory is None:
            return
        rows, passes = self._rows or (None, None)
        on_gpu = self.device.type != "cpu"
        wrong = {name: each for name, each in self.switches.items() if each["applied"] is not None}
        effective = {
            "device": str(self.device),
            "device_name": torch.cuda.get_device_name(self.device) if on_gpu else platform.machine(),
            "precision": self.precision,
            "threads": torch.get_num_threads(),
            "micro_batch": rows,
            "accumulation": passes,
            "processes": int(os.environ.get("WORLD_SIZE") or 1),
            "compile_graphs": compiled_graphs() if self._compiled else 0,
            "switches": self.switches,
            "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
            "fallbacks": [
                f"{name} {each['requested']}: using {each['applied']}: {each['note']}"
                for name, each in wrong.items()
                if each["applied"] != each["requested"] and each["requested"] not in {"auto", "null"}
            ],
        }
        place = self._directory / "effective.json"
        new = place.with_name(f".{place.name}.new")
        with contextlib.suppress(OSError):  # a full disk ends no training
            new.write_text(json.dumps(effective, indent=1) + "\n")
            new.replace(place)


class AttentionKernels(TorchFunctionMode):
    """Notes which kernel each differentiable call of ``scaled_dot_product_attention`` has come to.

    Autograd names it, at no cost; a mode that sees the operations themselves would load the compiler.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is functional.scaled_dot_product_attention and result.grad_fn is not None:
            fused = re.fullmatch("(ScaledDotProduct.*)Backward[0-9]+", result.grad_fn.name())
            self.names.append(re.sub("(?<!^)(?=[A-Z])", "_", fused[1]).lower() if fused else MATH)
        return result


def causal_attention_kernel(heads: int, time: int, size: int, device: torch.device) -> str:
    """Return the kernel that causal attention without a mask comes to, as the present autocast has it."""
    kind = device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    query = torch.zeros(1, heads, time, size, device=device, dtype=dtype, requires_grad=True)
    with AttentionKernels() as seen:
        functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    return seen.names[0]


def has_expandable_segments() -> bool | None:
    """Return True if the device's allocator has expandable segments, as it says itself; None: it does not."""
    snapshot = getattr(torch.cuda.memory, "_snapshot", None)
    settings = snapshot().get("allocator_settings", {}) if snapshot is not None else {}
    found = settings.get("expandable_segments")
    return None if found is None else bool(found)


def compiled_graphs() -> int:
    """Return the number of graphs that ``torch.compile`` has made in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def skipped_cuda_graphs() -> int:
    """Return the number of compiled graphs that run without the CUDA graph that their mode asks for."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["cudagraph_skips"])


def _word(value: Any) -> str:
    """Return a value in the notation of YAML and JSON."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
