"""The generated part of ``provenance/promises.md``: each claim beside what was measured.

The claims are in ``promises.yaml`` beside the page.  The measurements are those of ``runner bench WORKLOAD
--profiles SOURCE-before,SOURCE-after --ablate``, committed as ``bench/results/MACHINE/source-SOURCE.json``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from scripts.docs.page import PROVENANCE, ROOT
from scripts.docs.sources import not_in_force, unequal_threads
from scripts.gpu_report.report import read
from scripts.gpu_report.sources import summary

CLAIMS: Final = PROVENANCE / "promises.yaml"
RESULTS: Final = ROOT / "bench" / "results" / "amd-epyc-2-cores"
MISSING: Final = "not measured"

GPU_REPORTS: Final = ROOT / "bench" / "results" / "gpu"

SOURCES: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "M": ("MobilePoser", "mobileposer", "imu_stream"),
        "G": ("gogooku3", "gogooku3", "graph_forecast"),
        "T": ("gogo2", "gogo2", "resident_transformer"),
        "L": ("LMOL", "lmol", "pair_classifier"),
        "A": ("AGI2", "agi2", "causal_lm"),
    }
)
"""By the letter of the ids: the project, its profiles and the workload."""


class Claim(BaseModel):
    """One figure of a source document."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    claim: str
    here: str
    about: str
    gpu: str
    """Need of a GPU, with its reason; or what else it needs."""
    arm: str | None = None
    """The switch whose ablation answers it; ``all``: both profiles; ``before``: the first alone."""
    metric: Literal["items", "eval"] = "items"


class Measured:
    """The arms of one committed measurement."""

    def __init__(self, name: str, found: Mapping[str, Any]) -> None:
        self._name = name
        self._found = found
        self.arms: dict[str, Mapping[str, Any]] = {arm["name"]: arm for arm in found["arms"]}

    @property
    def before(self) -> Mapping[str, Any]:
        return self.arms[f"{self._name}-before"]

    @property
    def after(self) -> Mapping[str, Any]:
        return self.arms[f"{self._name}-after"]

    def without(self, switch: str) -> Mapping[str, Any] | None:
        """Return the arm in which one change of the document is undone, None if there is none."""
        begin = f"{self._name}-after, {switch}: "
        return next((arm for name, arm in self.arms.items() if name.startswith(begin)), None)

    def switches(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield each change that was undone by itself, with its arm."""
        for name, arm in self.arms.items():
            if ", " in name:
                yield name.partition(", ")[2].partition(":")[0], arm

    @property
    def circumstances(self) -> str:
        """Describe the workload that was measured, and the load of the machine."""
        machine, plan = self._found["machine"], self._found["workload"]
        rounds = f"{self._found['rounds']} rounds of {plan['steps']} steps"
        return (
            f"{machine['cpu']}, {machine['cores']} cores, {rounds};"
            f" load of the machine before: {machine['load']:g}"
        )

    @property
    def skipped(self) -> Mapping[str, str]:
        skipped: Mapping[str, str] = self._found["skipped"]
        return skipped


def measured(name: str, folder: Path = RESULTS) -> Measured | None:
    """Return the committed measurement of a source, None if there is none."""
    path = folder / f"source-{name}.json"
    return Measured(name, json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def claims(path: Path = CLAIMS) -> list[Claim]:
    """Return all claims, in the order of the documents."""
    return [Claim.model_validate(each) for each in yaml.safe_load(path.read_text(encoding="utf-8"))]


def reference(folder: Path = RESULTS) -> str:
    """Return a section for each source: its claims, and the ablation of each of its changes."""
    known = claims()
    return "\n".join(
        _section(letter, [claim for claim in known if claim.id[0] == letter], folder) for letter in SOURCES
    )


def _section(letter: str, known: Iterable[Claim], folder: Path) -> str:
    project, name, workload = SOURCES[letter]
    found = measured(name, folder)
    command = f"`runner bench {workload} --profiles {name}-before,{name}-after --ablate --rounds 3`"
    lines = [f"## {project}: {workload}", ""]
    if found is None:
        lines += [f"{command}: not run yet.", ""]
    else:
        lines += [f"{command}: [{found.circumstances}]({_link(name, folder)}).", ""]
        lines += [f"{_headline(found)} {on_a_gpu(project)}", ""]
    lines += ["| id | claim of the source | here | ours, on a CPU | needs a GPU | about the figure |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [
        f"| {claim.id} | {claim.claim} | {claim.here} | {_ours(claim, found)} | {claim.gpu} | {claim.about} |"
        for claim in known
    ]
    return "\n".join([*lines, "", *(_ablation(found) if found else ())])


def _ablation(found: Measured) -> Iterator[str]:
    """Yield a table with what each change of the document contributes."""
    yield "Each change undone by itself, beside all of them:"
    yield ""
    yield "| change | training, items/s (spread) | all changes by this | one evaluation, s |"
    yield "|---|---|---|---|"
    whole = found.after
    yield f"| none undone | {_rate(whole)} | | {_seconds(whole)} |"
    for switch, arm in found.switches():
        yield f"| `{switch}` undone | {_rate(arm)} | {_compared(whole, arm)} | {_seconds(arm)} |"
    before = found.before
    yield f"| all undone | {_rate(before)} | {_compared(whole, before)} | {_seconds(before)} |"
    for switch, why in found.skipped.items():
        yield f"| `{switch}` | left out: {why} | | |"
    yield ""


def _ours(claim: Claim, found: Measured | None) -> str:
    if claim.arm is None or found is None:
        return MISSING
    other = found.before if claim.arm in {"all", "before"} else found.without(claim.arm)
    if other is None:
        why = found.skipped.get(claim.arm)
        return f"left out: {why}" if why else MISSING
    if claim.arm != "before" and (why := uncompared(found.after, other)):
        return f"{MISSING}: {why}"
    if claim.metric == "eval":
        return _evaluations(claim, found.after, other)
    rates = f"{_rate(other)} to {_rate(found.after)} items/s"
    return f"{rates}: {_factor(found.after, other)}"


def uncompared(*arms: Mapping[str, Any]) -> str:
    """Return the reason why two arms say nothing about what differs in them, empty if they do.

    A figure is one of a change only if both arms ran with what they asked for, and with equal threads.
    """
    if threads := unequal_threads(arms):
        return f"the threads differ ({threads})"
    idle = ", ".join(f"`{name}`" for name in dict.fromkeys(name for _, name, _, _ in not_in_force(arms)))
    return f"{idle} not in force on a CPU" if idle else ""


def _headline(found: Measured) -> str:
    """Return the one sentence of a source: all changes, or the one that made the greatest difference."""
    whole, before = found.after, found.before
    told = "Headline: all changes together "
    if not (why := uncompared(whole, before)):
        return f"**{told}{_factor(whole, before)}.**"
    single = [(switch, arm) for switch, arm in found.switches() if not uncompared(whole, arm)]
    gains = [(whole["items_per_s"] / arm["items_per_s"], name) for name, arm in single if _apart(whole, arm)]
    best = max(gains, default=(1.0, ""))
    alone = (
        f"`{best[1]}` {best[0]:.2f} x" if best[0] > 1 else "1.0 x, none made a difference that could be told"
    )
    return f"**{told}{MISSING} ({why}); of the changes by themselves: {alone}.**"


def on_a_gpu(project: str, folder: Path = GPU_REPORTS) -> str:
    """Return a sentence about the part ``sources`` of ``scripts/gpu-report`` for each device it ran on."""
    told = [
        f"On {part.machine['device']} ([report](../bench/results/gpu/{place.parent.name}/report.md)): "
        + (summary(finding.figures["rows"]) if "rows" in finding.figures else f"{MISSING}: {finding.summary}")
        for place in sorted(folder.glob("*/report.md"))
        for part in read(place.parent, ("sources",))
        for finding in part.findings
        if finding.name.startswith(f"{project},")
    ]
    return " ".join(f"{each}." for each in told) or "Not run on a GPU."


def _evaluations(claim: Claim, after: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    if claim.arm == "before":
        return f"one evaluation {_seconds(other)} s"
    return (
        f"one evaluation {_seconds(other)} to {_seconds(after)} s: {other['eval_s'] / after['eval_s']:.1f} x"
    )


def _rate(arm: Mapping[str, Any]) -> str:
    return f"{arm['items_per_s']:,.0f} ({arm['items_low']:,.0f}-{arm['items_high']:,.0f})"


def _seconds(arm: Mapping[str, Any]) -> str:
    if arm["eval_s"] is None:
        return "-"
    spread = f" ({arm['eval_low']:.2f}-{arm['eval_high']:.2f})" if arm.get("eval_low") is not None else ""
    return f"{arm['eval_s']:.2f}{spread}"


def _factor(fast: Mapping[str, Any], slow: Mapping[str, Any]) -> str:
    """Return how many times as fast one arm is; where the spreads overlap, nothing can be concluded."""
    factor = f"{fast['items_per_s'] / slow['items_per_s']:.2f} x"
    return factor if _apart(fast, slow) else "no difference that could be told: the spreads overlap"


def _compared(fast: Mapping[str, Any], slow: Mapping[str, Any]) -> str:
    why = uncompared(fast, slow)
    return f"not compared: {why}" if why else _factor(fast, slow)


def _apart(fast: Mapping[str, Any], slow: Mapping[str, Any]) -> bool:
    """Return True if the spreads of two arms do not overlap."""
    return bool(fast["items_low"] > slow["items_high"] or fast["items_high"] < slow["items_low"])


def _link(name: str, folder: Path) -> str:
    return f"../bench/results/{folder.name}/source-{name}.json"
