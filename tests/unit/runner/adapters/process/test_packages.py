"""Packages of a host without containers."""

from pathlib import Path
from typing import Any, cast

import pytest

from images.packages.resolve import Unresolvable as ImageUnresolvable
from images.packages.values import PythonFacts
from runner.adapters.process.packages import HostPackages
from runner.core.ports.packages import PackageRequest, Unresolvable
from runner.core.ports.users import User


class Store:
    """An environment store that knows its Python."""

    def facts(self) -> PythonFacts:
        return PythonFacts("3.11", "x86_64", (2, 36), "/usr/bin/python3.11", (), ())


class Resolver:
    """A resolver that finds a package without a wheel."""

    def resolve(self, *_: Any) -> None:
        raise ImageUnresolvable("a has no usable wheels", "all of it", unbuilt=("a", "1"))


def test_a_host_without_containers_says_that_it_cannot_build(tmp_path: Path) -> None:
    packages = HostPackages(cast("Any", Store()), cast("Any", Resolver()), None)
    with pytest.raises(Unresolvable) as told:
        packages.resolve(PackageRequest(("a",)), User(1, 1, (1,), "ada"), tmp_path / "log", "packages-1")
    assert str(told.value) == "a has no usable wheels; building from source needs containers"
    assert told.value.details == "all of it"
