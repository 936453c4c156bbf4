"""The log lines at the start of a training: device, numerics, compilation, data and attention.

The lines repeat ``effective.json`` in readable form: the settings in force, not the requested ones.
"""

from collections.abc import Iterator, Mapping

from jobs.contract import Effective, Switch


def startup_lines(
    effective: Effective, *, hardware: str, item: str, compile_s: float | None
) -> Iterator[str]:
    """Yield the lines; ``hardware`` describes the device beyond its name.

    ``compile_s`` is the duration of compilation and its dry run, None if compilation is off.
    """
    switches = effective.switches
    beside = f", {hardware}" if hardware else ""
    yield (
        f"{effective.parameters:,} parameters, {effective.train_items:,} {item}s,"
        f" {effective.device} ({effective.device_name}{beside}), {effective.threads} threads,"
        f" {effective.precision}"
    )
    if not effective.device.startswith("cpu"):
        yield _numbers(switches)
    if compile_s is not None:
        yield _compilation(switches, compile_s)
    if effective.processes > 1:
        yield f"processes: {effective.processes}, each computes its part of every batch"
    yield _data(switches)
    if "attention" in switches and switches["attention"].applied is not None:
        yield f"attention: {switches['attention'].applied}"


def _numbers(switches: Mapping[str, Switch]) -> str:
    """Return the settings that determine the rounding on the device."""
    matmul, cudnn = (_word(switches, name) for name in ("tf32_matmul", "tf32_cudnn"))
    benchmark, deterministic = (_word(switches, name) for name in ("cudnn_benchmark", "deterministic"))
    return (
        f"numbers: TF32 in products {matmul}, in cuDNN {cudnn}; cuDNN benchmark {benchmark};"
        f" deterministic {deterministic}"
    )


def _compilation(switches: Mapping[str, Switch], seconds: float) -> str:
    """Return what was compiled and how long it took, or why nothing was compiled."""
    switch = switches["compile"]
    if switch.applied == "off":
        return f"compile: {switch.requested} was given up after {seconds:.1f} s: {switch.note}"
    shapes = {"false": "static", "true": "dynamic"}.get(switches["compile_dynamic"].requested, "automatic")
    whole = "full graph" if switches["compile_fullgraph"].requested == "true" else "graph breaks allowed"
    return f"compile: {switch.applied}, {shapes} shapes, {whole}: {switch.note} in {seconds:.1f} s"


def _data(switches: Mapping[str, Switch]) -> str:
    """Return where batches are kept and which processes make them."""
    placement, workers = switches["placement"], switches["loader_workers"]
    where = f"{placement.applied} ({placement.note})" if placement.note else placement.applied
    makers = "the trainer" if workers.applied in {None, "0"} else f"{workers.applied} process(es)"
    return f"data: {where}; batches made by {makers}"


def _word(switches: Mapping[str, Switch], name: str) -> str:
    return {"true": "on", "false": "off", None: "unused"}.get(switches[name].applied, "unknown")
