"""Index of torch, where a job asks for another one."""

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


def test_the_torch_of_the_image_needs_no_index() -> None:
    assert torch_index(Indexes(torch={"cpu": "https://x"}), Requirements(("torch",)), facts("2.13.0")) is None
