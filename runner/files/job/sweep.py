"""Sweeps: many jobs from one file, drawn from ranges or a grid, of which the best go on.

A sweep is a matrix whose jobs are candidates: the same variants, each with the section ``sweep`` in its file.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import islice, product
from random import Random
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from jobs import contract
from runner.base import yaml
from runner.base.textfile import Problem
from runner.base.yaml import MappingNode, ScalarNode
from runner.core.sweep import SweepTerms
from runner.files.job.matrix import ONCE, Variant, describe_variation, listed_nodes, put_values
from runner.files.job.queue import MAX_COMBINATIONS, FieldProblem, MatrixValue, VariedField
from runner.files.validation import format_path, validate_model

DIGITS: Final = 6
"""Significant digits of a drawn number: a job file shows all of it."""

MOST_REPEATS: Final = 20_000
"""Draws in a row that were drawn before: an interval that narrow has no more numbers of so many digits."""


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if not (math.isfinite(bounds[0]) and math.isfinite(bounds[1]) and bounds[0] < bounds[1]):
        raise ValueError("must be [least, most], two numbers with the smaller one first")
    return bounds


def _positive(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] <= 0:
        raise ValueError("must begin above 0, because its logarithm is drawn")
    return bounds


Bounds = Annotated[tuple[float, float], AfterValidator(_ordered)]


def _rising(rungs: tuple[int, ...]) -> tuple[int, ...]:
    if sorted(set(rungs)) != list(rungs):
        raise ValueError("must rise from step to step, without a repetition")
    return rungs


class Range(contract.Spec):
    """Source of the values of a parameter: exactly one of these."""

    uniform: Bounds | None = Field(None, description="[least, most]: a number between them.")
    log_uniform: Annotated[Bounds, AfterValidator(_positive)] | None = Field(
        None, description="[least, most]: a number whose logarithm is uniform."
    )
    integers: tuple[int, int] | None = Field(
        None, description="[least, most]: a whole number, both included."
    )

    @model_validator(mode="after")
    def _is_one(self) -> "Range":
        if sum(each is not None for each in (self.uniform, self.log_uniform, self.integers)) != 1:
            raise ValueError("needs exactly one of uniform, log_uniform and integers")
        if self.integers is not None and self.integers[0] > self.integers[1]:
            raise ValueError("integers must be [least, most], with the smaller one first")
        return self

    def size(self) -> float:
        """Return the number of values; those of an interval of numbers are not counted."""
        return math.inf if self.integers is None else self.integers[1] - self.integers[0] + 1

    def draw(self, random: Random) -> float | int:
        """Return a value."""
        if self.integers is not None:
            return random.randint(*self.integers)
        if self.uniform is not None:
            return float(f"{random.uniform(*self.uniform):.{DIGITS}g}")
        least, most = map(math.log, self.log_uniform or (1.0, 1.0))
        return float(f"{math.exp(random.uniform(least, most)):.{DIGITS}g}")


class Halving(contract.Spec):
    """Successive halving: candidates pause at each rung, and only the best of them go on."""

    rungs: Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_rising)] = Field(
        min_length=1, max_length=20, description="Steps after which a candidate saves, and waits."
    )
    eta: int = Field(3, ge=2, le=100, description="Of the candidates of a rung, one in so many goes on.")


class Sweep(contract.Spec):
    """Many candidates from one file, and which of them go on."""

    parameters: dict[VariedField, tuple[MatrixValue, ...] | Range] = Field(
        min_length=1,
        max_length=16,
        description="Field or variable, and its values, or uniform, log_uniform or integers.",
    )
    candidates: int | None = Field(
        None, ge=1, le=MAX_COMBINATIONS, description="How many are drawn; null: every combination of values."
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Of the draws: the same seed, the same candidates.")
    metric: str = Field(
        min_length=1, max_length=100, description="What the jobs report and are compared by: eval_loss."
    )
    direction: Literal["minimize", "maximize"] = Field("minimize", description="Which metric is better.")
    stop: Halving | None = Field(None, description="Which candidates go on; null: all of them.")
    max_failures: int | None = Field(
        None,
        ge=1,
        le=MAX_COMBINATIONS,
        description="After so many failed candidates it ends; null: any number.",
    )
    budget: float | None = Field(
        None,
        gt=0,
        description="Device hours, or CPU hours without devices, after which it ends; null: no limit.",
    )
    at_a_time: int | None = Field(
        None, ge=1, le=10_000, description="Jobs that may run at once; null: any number."
    )

    def terms(self) -> SweepTerms:
        """Return the metric that compares the candidates, and its times."""
        stop = self.stop
        return SweepTerms(
            metric=self.metric,
            maximize=self.direction == "maximize",
            rungs=() if stop is None else stop.rungs,
            eta=2 if stop is None else stop.eta,
            max_failures=self.max_failures,
            budget_h=self.budget,
        )

    def combinations(self) -> tuple[Mapping[str, MatrixValue], ...]:
        """Return the values of each candidate, in order."""
        if self.candidates is None:
            values = [each for each in self.parameters.values() if isinstance(each, tuple)]
            chosen = product(*values)
            return tuple(dict(zip(self.parameters, each, strict=True)) for each in chosen)
        return tuple(islice(self._draws(), self.candidates))

    def _draws(self) -> Iterator[dict[str, MatrixValue]]:
        random = Random(self.seed)  # noqa: S311  reproducible, and no secret
        drawn, repeats = set[str](), 0
        while True:
            chosen = {
                name: each.draw(random) if isinstance(each, Range) else random.choice(each)
                for name, each in self.parameters.items()
            }
            repeats = repeats + 1 if repr(chosen) in drawn else 0
            if not 0 < repeats < MOST_REPEATS:  # the same candidate again would tell nothing
                drawn.add(repr(chosen))
                yield chosen

    def size(self) -> float:
        """Return the number of candidates that can be drawn, at least."""
        return math.prod(
            each.size() if isinstance(each, Range) else len(set(map(repr, each)))
            for each in self.parameters.values()
        )


class _Alone(contract.Spec):
    """A model of the sweep alone."""

    sweep: Sweep | None = None


def parse_sweep(tree: MappingNode) -> Sweep | None:
    """Return the sweep of a file, None without a valid one; its problems are reported elsewhere."""
    if "sweep" not in tree.entries:
        return None
    written = {"sweep": yaml.to_plain(tree.entries["sweep"])}
    alone, _ = validate_model(_Alone, written, tree)
    found = alone.sweep if alone else None
    return None if found is None or any(find_sweep_contradictions(found)) else found


def find_sweep_contradictions(sweep: Sweep) -> Iterator[FieldProblem]:
    """Yield the problems of a sweep that do not depend on the varied fields."""
    for name, values in sweep.parameters.items():
        if values == ():
            yield ("sweep", "parameters", name), "has no values; add some or remove the field"
        elif isinstance(values, Range) and sweep.candidates is None:
            yield ("sweep", "parameters", name), "is drawn, so say how many: sweep.candidates"
    if sweep.candidates is not None and sweep.candidates > (size := sweep.size()) > 0:
        drawn = any(isinstance(each, Range) for each in sweep.parameters.values())
        step = f"say {size} or fewer" if drawn else "remove it to run each once"
        fact = f"asks for {sweep.candidates}, and there are {size} combinations; {step}"
        yield ("sweep", "candidates"), fact
    sizes = [len(each) for each in sweep.parameters.values() if isinstance(each, tuple)]
    if sweep.candidates is None and math.prod(sizes) > MAX_COMBINATIONS:
        fact = f"makes {math.prod(sizes)} jobs, and the limit is {MAX_COMBINATIONS}; set sweep.candidates"
        yield ("sweep", "parameters"), fact


def find_sweep_problems(tree: MappingNode, sweep: Sweep) -> Iterator[Problem]:
    """Yield the problems of fields that cannot be varied, and of sections that exclude a sweep."""
    for other in ("matrix", "schedule"):
        node = tree.entries.get(other)
        if node is not None and not (isinstance(node, ScalarNode) and node.value is None):
            fact = "cannot be combined with a sweep; remove one of them"
            yield Problem(yaml.find_position(tree, (other,)), other, fact)
    for name in sweep.parameters:
        wrong = ONCE.get(name.partition(".")[0]) or describe_variation(tree, name, sweep.parameters)
        if wrong:
            path = ("sweep", "parameters", name)
            yield Problem(yaml.find_key_position(tree, path), format_path(path), wrong)


def expand_sweep(tree: MappingNode, sweep: Sweep, name: str) -> tuple[Variant, ...]:
    """Return the variants of a sweep; each is named ``name`` and a number."""
    said = yaml.find_node(tree, ("sweep", "parameters"))
    assert isinstance(said, MappingNode)  # noqa: S101  (the sweep was made from it)
    listed = listed_nodes(said)

    def node(field: str, value: MatrixValue) -> ScalarNode:
        drawn = ScalarNode(said.entries[field].at, value, str(value))
        return listed.get((field, type(value), value), drawn)

    return tuple(
        Variant(
            put_values(
                tree,
                {field: (node(field, value), said.keys[field]) for field, value in chosen.items()},
                f"{name}-{number}",
            ),
            dict(chosen),
        )
        for number, chosen in enumerate(sweep.combinations(), start=1)
    )
