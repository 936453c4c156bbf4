"""The CUDA image from the wheels of its lock: 2.7 GB, so ``make test-cuda-image``, not ``make test``."""

from collections.abc import Iterator
from contextlib import closing
from fnmatch import fnmatchcase
from typing import Final

import docker
import pytest

from images.settings import ImageSettings
from images.store import ImageStore
from tests.fakes.engine.libraries import LOOK, find_missing, inside

ABSENT: Final = {
    "torch/lib/libcaffe2_nvrtc.so": {"libcuda.so.1"},  # of the driver: it comes from the host
    "triton/plugins/*": {"libtriton.so"},  # loaded by libtriton itself
    "nvidia/cu13/lib/libcusolverMg.so.*": {
        "libcublas.so.*",
        "libcublasLt.so.*",
        "libnvJitLink.so.*",
    },  # preloaded
    "nvidia/cu13/lib/libcufile_rdma.so.*": {
        "libcufile.so.0",
        "libibverbs.so.1",
        "libmlx5.so.1",
        "librdmacm.so.1",
    },
    "nvidia/nvshmem/lib/nvshmem_bootstrap_*": {"libmpi.so.40", "liboshmem.so.40", "libpmix.so.2"},
    "nvidia/nvshmem/lib/nvshmem_transport_*": {
        "libfabric.so.1",
        "libmlx5.so.1",
        "libucp.so.0",
        "libucs.so.0",
    },
}
"""What may be missing: the driver, and adapters for networks and launchers that one host does not have."""

KNOWS: Final = """
import torch
print(torch.__version__, torch.version.cuda, torch.cuda.is_available(), torch.backends.cudnn.version() > 9e4)
print(*torch.cuda.get_arch_list())
"""


@pytest.fixture(scope="module")
def client(engine: str) -> Iterator[docker.DockerClient]:
    with closing(docker.DockerClient(engine, version="auto")) as client:
        yield client


@pytest.fixture(scope="module")
def image(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    assert base_image
    made = tmp_path_factory.mktemp("cuda")
    return ImageStore(ImageSettings(cache_dir=made / "cache")).ensure("cuda", made / "log.txt")


def _may_be_missing(file: str, name: str) -> bool:
    below = file.partition("/site-packages/")[2]
    return any(
        fnmatchcase(below, pattern) and any(fnmatchcase(name, each) for each in names)
        for pattern, names in ABSENT.items()
    )


@pytest.mark.timeout(1200)
def test_the_wheels_are_those_of_cuda_and_torch_is_imported(client: docker.DockerClient, image: str) -> None:
    first, architectures = inside(client, image, "python3", "-c", KNOWS).splitlines()
    assert first == "2.13.0+cu130 13.0 False True"
    assert {"sm_75", "sm_80", "sm_90"} <= set(architectures.split())


def test_no_library_is_missing_but_those_of_the_driver_and_of_other_networks(
    client: docker.DockerClient, image: str
) -> None:
    missing, count = find_missing(inside(client, image, "python3", "-c", LOOK))
    assert [each for each in missing if not _may_be_missing(*each)] == []
    assert ("lib/python3.11/site-packages/torch/lib/libcaffe2_nvrtc.so", "libcuda.so.1") in missing
    assert count > 150
