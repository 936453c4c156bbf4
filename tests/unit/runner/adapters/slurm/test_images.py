"""Images as nodes read them, unpacked by a stand-in for the engine."""

from pathlib import Path

import pytest

from runner.adapters.slurm import images
from runner.adapters.slurm.images import UnpackedImages
from runner.adapters.slurm.oci import MOUNT_POINTS
from runner.core.ports.executor import LaunchRefused

IMAGE = f"sha256:{'a' * 64}"


def export(_engine: str | None, _image: str, directory: Path) -> tuple[str, ...]:
    (directory / "tmp").mkdir()
    return ("PATH=/usr/bin",)


def test_an_image_is_unpacked_once_with_all_mount_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "export_image", export)
    found = UnpackedImages(tmp_path).find(IMAGE)
    assert found.environment == ("PATH=/usr/bin",)
    assert all((found.rootfs / name).is_dir() for name in MOUNT_POINTS)
    monkeypatch.delattr(images, "export_image")
    assert UnpackedImages(tmp_path).find(IMAGE) == found


def test_an_image_that_was_unpacked_in_another_way_is_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "export_image", export)
    before = UnpackedImages(tmp_path).find(IMAGE)
    monkeypatch.setattr(images, "SCHEMA", images.SCHEMA + 1)
    assert UnpackedImages(tmp_path).find(IMAGE).rootfs != before.rootfs


@pytest.mark.parametrize("name", ["run", "job"])
def test_a_link_of_an_image_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def with_link(_engine: str | None, _image: str, directory: Path) -> tuple[str, ...]:
        (directory / name).symlink_to(outside)
        return ()

    monkeypatch.setattr(images, "export_image", with_link)
    with pytest.raises(LaunchRefused, match=f"/{name} is a link or a file"):
        UnpackedImages(tmp_path / "images").find(IMAGE)
    assert list(outside.iterdir()) == []
