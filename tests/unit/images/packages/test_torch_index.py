"""Index of torch, where a job asks for another one."""

import pytest

from images.packages import resolve
from images.packages.answer import FoundPackage
from images.packages.resolve import torch_index
from images.packages.values import Indexes, Installed, PythonFacts, Requirements

OTHER = Requirements(("torch==2.12.0",), own_family=frozenset({"torch"}))


def facts(torch: str) -> PythonFacts:
    return PythonFacts("3.11", "x86_64", (2, 36), "/usr/bin/python3", (), (Installed("torch", torch),))


def test_the_settings_name_the_index_of_an_accelerator() -> None:
    assert torch_index(Indexes(torch={"cpu": "https://x/cpu"}), OTHER, facts("2.13.0+cpu")) == "https://x/cpu"
    assert torch_index(Indexes(torch={"cpu": None}), OTHER, facts("2.13.0+cpu")) is None


def test_without_an_entry_it_is_that_of_the_build_unless_there_is_an_index_of_ones_own() -> None:
    assert torch_index(Indexes(), OTHER, facts("2.13.0+cu126")) == "https://download.pytorch.org/whl/cu126"
    assert torch_index(Indexes(), OTHER, facts("2.13.0")) is None
    assert torch_index(Indexes(index_url="https://mirror/simple"), OTHER, facts("2.13.0+cpu")) is None
    assert torch_index(Indexes(offline=True), OTHER, facts("2.13.0+cpu")) is None


def test_the_companions_that_the_image_lacks_come_from_the_index_of_its_torch() -> None:
    assert torch_index(Indexes(), Requirements(("torchvision",)), facts("2.13.0+rocm7.2")) == (
        "https://download.pytorch.org/whl/rocm7.2"
    )


@pytest.mark.parametrize(
    ("torch", "version", "fits"),
    [
        ("2.13.0+cu126", "0.28.0", False),
        ("2.13.0+cu126", "0.28.0+cpu", False),
        ("2.13.0+cu126", "0.28.0+cu126", True),
        ("2.13.0", "0.28.0", True),
        ("2.13.0", "0.28.0+cpu", False),
    ],
)
def test_what_is_compiled_against_another_build_of_torch_is_refused(
    torch: str, version: str, *, fits: bool
) -> None:
    found = (
        FoundPackage("torchvision", version),
        FoundPackage("torch", torch),
        FoundPackage("triton", "3.5"),
    )
    if fits:
        resolve._check_builds(found, Requirements(("torchvision",)), facts(torch))
        return
    with pytest.raises(
        resolve.Unresolvable, match=r"torchvision .* is not of the build of the image's torch"
    ):
        resolve._check_builds(found, Requirements(("torchvision",)), facts(torch))


def test_on_cpus_what_no_index_has_in_the_build_of_the_images_torch_brings_a_torch_of_its_own() -> None:
    found = (FoundPackage("torchvision", "0.28.0"),)
    with pytest.raises(resolve.Unresolvable, match=f"{resolve.THE_IMAGE_HAS}2.13.0") as refused:
        resolve._check_builds(found, Requirements(("torchvision",)), facts("2.13.0+cpu"))
    assert refused.value.unbuilt is None  # the resolution begins again with the family as the job's own
    with pytest.raises(resolve.Unresolvable) as refused:
        resolve._check_builds(found, Requirements(("torchvision",)), facts("2.13.0+cu126"))
    assert resolve.THE_IMAGE_HAS not in str(refused.value)
