"""The cards of a job in the configuration of its container, as the node completes it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.adapters.slurm import node_devices

EMPTY = {"env": ["PATH=/bin"]}


def specification(*names: str, **edits: object) -> dict[str, Any]:
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{number}"}]}}
        for number, name in enumerate(names)
    ]
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": edits}


class Node:
    """A node with an image, a job and specifications."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rootfs = root / "rootfs"
        self.cdi = root / "cdi"
        for each in (self.rootfs, self.cdi):
            each.mkdir()

    def complete(
        self, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, vendor: str = "nvidia"
    ) -> dict[str, Any]:
        """Return the configuration of a container as the job of these variables gets it."""
        for name in ("CUDA_VISIBLE_DEVICES", *node_devices.CHOSEN):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        path = self.root / "config.json"
        path.write_text(json.dumps({"root": {"path": str(self.rootfs)}, "process": EMPTY, "mounts": []}))
        node_devices.main([vendor, str(path), str(self.root / "none"), str(self.cdi)])
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def targets(self, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return [each["destination"] for each in self.complete(variables, monkeypatch)["mounts"]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"SLURM_JOB_GPUS": "1"}, ["/dev/nvidia1"]),
        ({"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}, ["/dev/nvidia0", "/dev/nvidia1"]),
        ({"SLURM_JOB_GPUS": "0", "SLURM_STEP_GPUS": "1"}, ["/dev/nvidia1"]),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "GPU-b"}, ["/dev/nvidia3"]),
    ],
)
def test_the_cards_are_those_that_slurm_has_chosen(
    node: Node, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], shown: list[str]
) -> None:
    (node.cdi / "nvidia.json").write_text(json.dumps(specification("0", "1", "GPU-a", "GPU-b")))
    (node.cdi / "other.json").write_text(json.dumps({"kind": "example.org/nic", "devices": []}))
    assert node.targets(variables, monkeypatch) == shown


def test_what_has_no_place_in_the_image_is_shown_elsewhere_by_all_its_names(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = node.root / "driver"
    driver.mkdir()
    for name in ("libcuda.so.580.1", "nvidia-smi", "persistenced"):
        (driver / name).touch()
    (driver / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    (node.rootfs / "etc").mkdir()
    (node.rootfs / "etc/there").touch()
    places = {"libcuda.so.580.1": "/usr/lib64/libcuda.so.580.1", "nvidia-smi": "/usr/bin/nvidia-smi"}
    mounts = [
        {"hostPath": str(driver / name), "containerPath": target, "options": ["ro", "bind"]}
        for name, target in {**places, "persistenced": "/etc/there"}.items()
    ]
    hooks = [
        {"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook"]},
        {"hookName": "createContainer", "path": "/opt/site/note", "args": ["note"]},
    ]
    said = specification("0", "1", mounts=mounts, hooks=hooks, env=["NVIDIA_VISIBLE_DEVICES=void"])
    (node.cdi / "nvidia.yaml").write_text(json.dumps(said))  # JSON is YAML
    made = node.complete({"SLURM_JOB_GPUS": "0,1"}, monkeypatch)
    libraries, programs = "/dev/cdi/usr/lib64", "/dev/cdi/usr/bin"
    assert [each["destination"] for each in made["mounts"]] == [
        *("/dev/nvidia0", "/dev/nvidia1"),
        *(f"{libraries}/libcuda.so.580.1", f"{libraries}/libcuda.so.1"),
        *(f"{programs}/nvidia-smi", "/etc/there"),
    ]
    variables = [f"PATH=/bin:{programs}", "NVIDIA_VISIBLE_DEVICES=void", f"LD_LIBRARY_PATH={libraries}"]
    assert made["process"]["env"] == variables
    assert made["hooks"] == {"createContainer": [{"path": "/opt/site/note", "args": ["note"]}]}


@pytest.mark.parametrize(
    ("variables", "edits", "fact"),
    [
        ({}, {}, r"Slurm does not say which GPUs this job has \(SLURM_JOB_GPUS\)"),
        ({"SLURM_JOB_GPUS": "2"}, {}, "no CDI specification of this node names nvidia.com/gpu=2; there is 0"),
        (
            {"SLURM_JOB_GPUS": "0"},
            {"mounts": [{"hostPath": "tmpfs", "containerPath": "/x", "type": "tmpfs"}]},
            "has a mount of tmpfs, which is not understood",
        ),
        ({"SLURM_JOB_GPUS": "0"}, {"netDevices": [{}]}, "has netDevices, which is not understood"),
        ({"SLURM_JOB_GPUS": "0"}, {"intelRdt": {"closID": "a"}}, "has intelRdt, which is not understood"),
        (
            {"SLURM_JOB_GPUS": "0"},
            {"additionalGids": [4_000_001]},
            "for members of group 4000001 on this node, and this user is none",
        ),
        ({"SLURM_JOB_GPUS": "0"}, {"mounts": [{"hostPath": "/x"}]}, "is malformed .*containerPath.*/x"),
        ({"SLURM_JOB_GPUS": "0"}, {"deviceNodes": ["/dev/nvidiactl"]}, "is malformed .*nvidiactl"),
        ({"SLURM_JOB_GPUS": "0"}, {"env": {"A": 1}, "hooks": [{}]}, "is malformed .*'path'"),
        ({"SLURM_JOB_GPUS": "0"}, {"additionalGids": 44}, "is malformed .*additionalGids"),
    ],
)
def test_what_is_missing_or_not_understood_ends_the_attempt_in_words(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    edits: dict[str, object],
    fact: str,
) -> None:
    (node.cdi / "nvidia.json").write_text(json.dumps(specification("0", **edits)))
    with pytest.raises(SystemExit, match=fact):
        node.complete(variables, monkeypatch)


@pytest.mark.parametrize("version", ["0.3.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0"])
def test_fields_of_all_versions_of_specifications_are_read(
    node: Node, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    node_of_card = {"path": "/dev/nvidia1", "hostPath": "/run/dev/1", "permissions": "rw"}
    said = specification(
        "0",
        "gpu.1:mig.2",
        additionalGids=[0, os.getgid(), *os.getgroups()],
        intelRdt={},
        netDevices=[],
        env=None,
    )
    said |= {"cdiVersion": version, "annotations": {"made.by": "nvidia-ctk"}}
    said["devices"][1] |= {
        "annotations": {"a": "b"},
        "containerEdits": {"deviceNodes": [node_of_card], "hooks": None},
    }
    (node.cdi / "nvidia.yaml").write_text(json.dumps(said))
    made = node.complete({"SLURM_JOB_GPUS": "gpu.1:mig.2"}, monkeypatch)
    assert [(each["destination"], each["source"]) for each in made["mounts"]] == [
        ("/dev/nvidia1", "/run/dev/1")
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.json", "null"),
        ("a.json", '{"kind": "nvidia.com/gpu"}'),
        ("a.json", '{"kind": "nvidia.com/gpu", "devices": [{}]}'),
        ("a.json", '{"kind": "nvidia.com/gpu", "devices": null}'),
        ("a.yaml", "kind: [\n"),
        ("a.yaml", "\udcff"),
        pytest.param("a.json", "[" * 100_000, id="endless"),
    ],
)
def test_a_file_that_is_no_specification_hides_no_other_and_is_named(
    node: Node, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    (node.cdi / name).write_bytes(text.encode(errors="surrogateescape"))
    (node.cdi / "nvidia.json").write_text(json.dumps(specification("0")))
    assert node.targets({"SLURM_JOB_GPUS": "0"}, monkeypatch) == ["/dev/nvidia0"]
    with pytest.raises(SystemExit, match=rf"names nvidia.com/gpu=1; there is 0; not readable: .*/{name} \("):
        node.complete({"SLURM_JOB_GPUS": "1"}, monkeypatch)


def test_a_python_without_yaml_is_told_what_to_do(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (node.cdi / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(SystemExit, match=r"reads no YAML; nvidia-ctk cdi generate --output=.*/nvidia\.json"):
        node.complete({"SLURM_JOB_GPUS": "0"}, monkeypatch)


def test_amd_cards_are_counted_by_their_render_nodes(tmp_path: Path) -> None:
    for number, minor in enumerate((0, 129, 128)):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "properties").write_text(f"simd_count 4\ndrm_render_minor {minor}\n")
    shown = [each["destination"] for each in node_devices.amd_mounts(["1"], tmp_path)]
    assert shown == ["/dev/kfd", "/dev/dri/renderD129"]
    with pytest.raises(SystemExit, match="this node has 2 AMD GPUs, and Slurm's number 2 is none of them"):
        list(node_devices.amd_mounts(["2"], tmp_path))


def test_it_imports_nothing_that_a_node_lacks() -> None:
    source = Path(node_devices.__file__).read_text()
    imported = {line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported == {"json", "os", "sys", "collections.abc", "pathlib", "typing"}
