"""The packages of jobs as the daemon asks for them: which image gets them, by its Python."""

import json
from pathlib import Path

import pytest

from images.cancellation import CancellationToken
from images.own import DockerfileImages, DockerfileRules
from images.packages.lock import parse_lock
from images.packages.store import PackageSettings, PackageStore
from images.packages.values import Indexes, Limits
from images.ports import Step, StepEnd
from runner.adapters.docker.packages import DockerPackages
from runner.core.ports.images import Accelerator, BuildFailed, PullPolicy
from runner.core.ports.packages import PackageRequest, Unresolvable
from runner.core.ports.users import User
from runner.files.package_lock import locked_image
from tests.fakes.engine.image_engine import FakeEngine
from tests.integration.process.images.packages.test_packages import FACTS

ANN = User(4321, 4321, (4321,), "ann")
LAB, OLD, GPU = ("lab", "site/lab:1"), ("old", "site/old:1"), ("gpu", "site/gpu:1")


class Engine(FakeEngine):
    """An engine whose images have different Pythons."""

    pythons: dict[str, str]

    def step(self, step: Step, token: CancellationToken | None = None) -> StepEnd:
        del token
        self.steps.append(step)
        python = self.pythons[step.image]
        return StepEnd(0, json.dumps({**FACTS, "python": python})) if python else StepEnd(127, "no python3")


class Offered:
    """Satisfies ``Images``; what the operator offers is in the engine."""

    def __init__(self, engine: Engine, auto: str) -> None:
        self._engine, self._auto = engine, auto

    def ensure(self, accelerator: Accelerator, log: Path, job_id: str) -> str:
        del accelerator, log, job_id
        return self._auto

    def pin(self, reference: str, pull: PullPolicy) -> str:
        raise AssertionError((reference, pull))

    def fetch(self, reference: str, log: Path, job_id: str) -> str:
        del log, job_id
        return self.resolve(reference)

    def resolve(self, reference: str) -> str:
        found = self._engine.image(reference)
        if found is None:
            raise BuildFailed(f"image {reference}: is not in the engine")
        return found.id

    def leave(self, job_id: str) -> None: ...
    def close(self) -> None: ...
    def digest(self, accelerator: Accelerator) -> str:
        return accelerator


@pytest.fixture
def packages(tmp_path: Path) -> DockerPackages:
    engine = Engine()
    auto = engine.add("runner-cpu:h-1").id
    lab = engine.add("site/lab:1").id
    old = engine.add("site/old:1").id
    gpu = engine.add("site/gpu:1", {"runner.accelerator": "cuda"}).id
    shell = engine.add("site/shell:1").id
    engine.pythons = {auto: "3.11", lab: "3.12", old: "3.9", gpu: "3.12", shell: ""}
    limits = Limits(60)
    store = PackageStore(PackageSettings(tmp_path, Indexes(offline=True), limits=limits), lambda: engine)
    dockerfiles = DockerfileImages(tmp_path, lambda: engine, DockerfileRules(), limits)
    return DockerPackages(store, dockerfiles, Offered(engine, auto), None)


def chosen(packages: DockerPackages, tmp_path: Path, **wanted: object) -> tuple[str, str | None]:
    offered = (GPU, LAB, OLD, ("gone", "site/gone:1"), ("shell", "site/shell:1"))
    request = PackageRequest((), offered=offered, **wanted)  # type: ignore[arg-type]
    text = packages.resolve(request, ANN, tmp_path / "log", "packages-1")
    return parse_lock(text).python, locked_image(text)


def test_an_image_of_the_operator_is_taken_that_has_the_python(
    packages: DockerPackages, tmp_path: Path
) -> None:
    assert chosen(packages, tmp_path, python="3.11") == ("3.11", None)
    assert chosen(packages, tmp_path, python="3.12") == ("3.12", "lab")  # gpu is made for another accelerator
    assert chosen(packages, tmp_path, python="3.12", accelerator="cuda") == ("3.12", "gpu")
    assert chosen(packages, tmp_path) == ("3.11", None)


def test_a_python_that_no_image_has_is_refused_with_those_that_there_are(
    packages: DockerPackages, tmp_path: Path
) -> None:
    with pytest.raises(Unresolvable) as raised:
        chosen(packages, tmp_path, python="3.13")
    fact = "no image for it (auto has 3.11, gpu has 3.12, lab has 3.12, old has 3.9)"
    assert str(raised.value).startswith(f"image.python: {fact}; take one of these")
    with pytest.raises(Unresolvable, match=r"its base has 3\.9, gpu has 3\.12"):
        chosen(packages, tmp_path, python="3.12", base="site/old:1")
