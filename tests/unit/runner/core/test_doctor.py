"""Findings about made-up machines: what is right, what is wrong, and the next step."""

from dataclasses import replace

import pytest

from runner.core.doctor import (
    GIB,
    AmdFacts,
    EngineFacts,
    Finding,
    HostFacts,
    Machine,
    Node,
    NvidiaFacts,
    NvidiaGpu,
    Verdict,
    choose_injection,
    examine,
)

OPEN = Node("/dev/nvidia0", "root", accessible=True)
H100 = NvidiaGpu("GPU-0", "NVIDIA H100 80GB HBM3", (9, 0), persistence=True, ecc_errors=0, retired_pages=0)
NVIDIA = NvidiaFacts(1, "580.65.06", None, (13, 0), (OPEN,), (H100,))
KFD, RENDER = (
    Node("/dev/kfd", "render", accessible=True),
    Node("/dev/dri/renderD128", "render", accessible=True),
)
AMD = AmdFacts(1, driver=True, kfd=KFD, render=(RENDER,), gpus=("AMD Instinct MI300X",))
ENGINE = EngineFacts(
    None,
    "28.2.2",
    ("runc",),
    cdi_enabled=True,
    cdi_files=("/etc/cdi/nvidia.yaml",),
    cdi_devices=("GPU-h0", "GPU-h1"),
    storage="overlay2",
)
HOST = HostFacts(2, 8 * GIB, 500 * GIB, "/var/lib/runner", None, 65536, 8192, clock_synchronized=True)
MACHINE = Machine(NVIDIA, AmdFacts(), ENGINE, HOST, wanted_cuda=(13, 0))


def found(machine: Machine, subject: str) -> list[Finding]:
    return [each for each in examine(machine) if each.subject == subject]


def one(machine: Machine, subject: str) -> Finding:
    [finding] = found(machine, subject)
    return finding


def with_nvidia(**changes: object) -> Machine:
    return replace(MACHINE, nvidia=replace(NVIDIA, **changes))  # type: ignore[arg-type]


def test_a_healthy_machine_has_no_advice() -> None:
    findings = examine(MACHINE)
    assert {each.verdict for each in findings} == {Verdict.OK}
    assert not [each.advice for each in findings if each.advice]
    assert one(MACHINE, "NVIDIA driver").fact == (
        "580.65.06, supports CUDA up to 13.0; the image's torch needs CUDA 13.0"
    )
    assert one(MACHINE, "devices in containers").fact == "by CDI (/etc/cdi/nvidia.yaml)"
    assert (
        one(replace(MACHINE, wanted_cuda=None), "NVIDIA driver").fact == "580.65.06, supports CUDA up to 13.0"
    )


# --- NVIDIA


@pytest.mark.parametrize(
    ("driver", "cuda", "wanted", "verdict"),
    [
        ("570.86.10", (12, 8), (13, 0), Verdict.PROBLEM),
        ("580.65.06", None, (13, 0), Verdict.OK),
        ("525.60.13", None, (12, 8), Verdict.OK),
        ("525.60.11", None, (12, 8), Verdict.PROBLEM),
        ("999.1", None, (99, 0), Verdict.OK),
    ],
)
def test_a_driver_is_compared_with_what_the_images_torch_needs(
    driver: str, cuda: tuple[int, int] | None, wanted: tuple[int, int], verdict: Verdict
) -> None:
    machine = replace(with_nvidia(driver=driver, cuda=cuda), wanted_cuda=wanted)
    finding = one(machine, "NVIDIA driver")
    assert finding.verdict is verdict
    assert ("update the driver to" in finding.advice) is (verdict is Verdict.PROBLEM)


def test_a_gpu_without_a_driver_is_a_problem() -> None:
    machine = with_nvidia(driver=None, nvml_error="NVML Shared Library Not Found", gpus=(), nodes=())
    assert one(machine, "NVIDIA driver").fact == "1 GPU on the PCI bus and no driver is loaded"
    assert one(machine, "NVML").advice == "load the driver first"
    assert one(machine, "/dev/nvidia*").fact == "there are none"


def test_a_library_of_another_version_than_the_driver_is_a_problem() -> None:
    machine = with_nvidia(nvml_error="Driver/library version mismatch", gpus=())
    assert "of one version" in one(machine, "NVML").advice


def test_a_gpu_that_does_not_answer_is_noticed() -> None:
    finding = one(with_nvidia(on_bus=2), "NVML")
    assert (finding.verdict, finding.fact) == (Verdict.WARNING, "1 of 2 GPUs on the PCI bus answer")


@pytest.mark.parametrize(
    ("changes", "verdict", "fact"),
    [
        ({"unusable": "the driver has lost it"}, Verdict.PROBLEM, "the driver has lost it"),
        (
            {"capability": (7, 0)}, Verdict.PROBLEM,
            "compute capability 7.0; the image's torch for CUDA 13.0 has code for 7.5 to 12.1",
        ),
        ({"ecc_errors": 1}, Verdict.WARNING, "1 uncorrectable memory error since the driver was loaded"),
        ({"retired_pages": 2}, Verdict.WARNING, "2 memory pages retired or remapped"),
        ({"persistence": False}, Verdict.WARNING, "persistence mode is off: each job loads the driver anew"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_gpu_is_said_with_the_next_step(
    changes: dict[str, object], verdict: Verdict, fact: str
) -> None:
    machine = with_nvidia(gpus=(replace(H100, **changes),))  # type: ignore[arg-type]
    finding = one(machine, "GPU-0 NVIDIA H100 80GB HBM3")
    assert (finding.verdict, finding.fact) == (verdict, fact)
    assert finding.advice


def test_what_a_gpu_does_not_say_is_not_held_against_it() -> None:
    assert found(with_nvidia(gpus=(NvidiaGpu("GPU-0", "old"),)), "GPU-0 old") == []


# --- devices in containers


@pytest.mark.parametrize(
    ("engine", "wanted", "how", "problem"),
    [
        (ENGINE, "auto", "cdi", ""),
        (replace(ENGINE, runtimes=("nvidia", "runc")), "hook", "hook", ""),
        (replace(ENGINE, runtimes=("nvidia", "runc"), cdi_files=(), cdi_devices=()), "auto", "hook", ""),
        (ENGINE, "hook", None, "gpu_injection is hook, and the engine has no runtime nvidia"),
        (
            replace(ENGINE, cdi_files=(), cdi_devices=()), "auto", None,
            "no CDI specification describes nvidia.com/gpu",
        ),
        (
            replace(ENGINE, version="20.10.24+dfsg1", cdi_enabled=None), "auto", None,
            "engine 20.10.24+dfsg1 cannot inject devices by CDI, and has no runtime nvidia",
        ),
        (
            replace(ENGINE, version="20.10.24+dfsg1", cdi_enabled=None), "cdi", None,
            "engine 20.10.24+dfsg1 cannot inject devices by CDI",
        ),
        (
            replace(ENGINE, cdi_enabled=False), "cdi", None,
            "engine 28.2.2 cannot inject devices by CDI (it is switched off)",
        ),
    ],
)  # fmt: skip
def test_how_devices_get_into_containers_follows_from_the_engine(
    engine: EngineFacts, wanted: str, how: str | None, problem: str
) -> None:
    choice = choose_injection(engine, wanted)  # type: ignore[arg-type]
    assert (choice.how, choice.problem) == (how, problem)
    assert bool(choice.advice) is (how is None)
    finding = one(replace(MACHINE, engine=engine, injection=wanted), "devices in containers")  # type: ignore[arg-type]
    assert finding.verdict is (Verdict.PROBLEM if how is None else Verdict.OK)


def test_a_specification_of_other_cards_is_a_problem_before_a_job_meets_it() -> None:
    cards = (("GPU-0", "GPU-h0"), ("GPU-1:0", "MIG-new"))
    finding = one(with_nvidia(given=cards), "devices in containers")
    assert finding.verdict is Verdict.PROBLEM
    assert finding.fact.endswith("is of other devices: it lacks GPU-1:0")
    assert "nvidia-ctk cdi generate" in finding.advice
    assert one(with_nvidia(given=cards[:1]), "devices in containers").verdict is Verdict.OK


def test_a_toolkit_that_is_installed_is_not_asked_for_again() -> None:
    bare = replace(MACHINE, engine=replace(ENGINE, cdi_files=(), cdi_devices=()))
    asked = one(bare, "devices in containers").advice
    assert asked.startswith("install nvidia-container-toolkit, then: nvidia-ctk ")
    has_it = replace(bare, nvidia=replace(NVIDIA, toolkit="/usr/bin/nvidia-ctk"))
    assert one(has_it, "devices in containers").advice == asked.removeprefix(
        "install nvidia-container-toolkit, then: "
    )


# --- AMD


def test_a_healthy_amd_machine() -> None:
    machine = replace(MACHINE, nvidia=NvidiaFacts(), amd=AMD)
    assert {each.verdict for each in examine(machine)} == {Verdict.OK}
    assert one(machine, "AMD driver").fact == "amdgpu of the kernel; 1 GPU can compute"


@pytest.mark.parametrize(
    ("changes", "subject", "fact", "advice"),
    [
        ({"driver": False}, "AMD driver", "1 GPU on the PCI bus and amdgpu is not loaded", "load it"),
        ({"kfd": None}, "/dev/kfd", "is missing: nothing can compute", "install"),
        (
            {"kfd": replace(KFD, accessible=False)}, "/dev/kfd", "/dev/kfd: this user may not open it",
            "add the user to the group render, and log in again",
        ),
        ({"render": ()}, "/dev/dri/renderD*", "there are none", "see dmesg"),
    ],
)  # fmt: skip
def test_what_keeps_an_amd_gpu_from_computing(
    changes: dict[str, object], subject: str, fact: str, advice: str
) -> None:
    machine = replace(MACHINE, nvidia=NvidiaFacts(), amd=replace(AMD, **changes))  # type: ignore[arg-type]
    finding = one(machine, subject)
    assert (finding.verdict, finding.fact) == (Verdict.PROBLEM, fact)
    assert finding.advice.startswith(advice)


def test_a_member_of_the_group_that_may_not_open_a_node_looks_at_its_mode() -> None:
    closed = replace(AMD, kfd=replace(KFD, accessible=False))
    machine = replace(MACHINE, amd=closed, groups=frozenset({"render"}))
    assert one(machine, "/dev/kfd").advice == "look at their modes"


# --- engine and host


def test_a_machine_without_gpus_says_so() -> None:
    machine = replace(MACHINE, nvidia=NvidiaFacts(), engine=None)
    assert one(machine, "GPUs").verdict is Verdict.ABSENT
    assert one(machine, "container engine").fact == "jobs run as plain processes"


def test_an_engine_that_is_down_is_a_problem_and_says_nothing_about_devices() -> None:
    machine = replace(MACHINE, engine=EngineFacts("the container engine does not answer"))
    assert one(machine, "container engine").verdict is Verdict.PROBLEM
    assert found(machine, "devices in containers") == []


@pytest.mark.parametrize(
    ("changes", "subject", "verdict"),
    [
        ({"cgroup": None}, "cgroups", Verdict.UNKNOWN),
        ({"disk_free_bytes": GIB}, "free disk", Verdict.WARNING),
        ({"disk_free_bytes": None}, "free disk", Verdict.UNKNOWN),
        ({"shm_bytes": 64 * 1024**2}, "shared memory", Verdict.WARNING),
        ({"inotify_watches": 100}, "inotify watches", Verdict.WARNING),
        ({"inotify_instances": None}, "inotify instances", Verdict.UNKNOWN),
        ({"clock_synchronized": False}, "clock", Verdict.WARNING),
        ({"closed_installation": "/root"}, "installation", Verdict.PROBLEM),
        ({"clock_synchronized": None}, "clock", Verdict.UNKNOWN),
    ],
)
def test_limits_of_the_host(changes: dict[str, object], subject: str, verdict: Verdict) -> None:
    machine = replace(MACHINE, host=replace(HOST, **changes))  # type: ignore[arg-type]
    assert one(machine, subject).verdict is verdict


# --- engines without support, and mapped users


@pytest.mark.parametrize("change", [{"rootless": True}, {"podman": True}])
def test_an_engine_in_which_no_job_can_run_is_a_problem_with_the_next_step(change: dict[str, bool]) -> None:
    finding = one(replace(MACHINE, engine=replace(ENGINE, **change)), "container engine")  # type: ignore[arg-type]
    assert finding.verdict is Verdict.PROBLEM
    assert "is not supported" in finding.fact
    assert "executor: process" in finding.advice


def test_users_that_the_engine_maps_are_those_of_the_host_for_jobs() -> None:
    machine = replace(MACHINE, engine=replace(ENGINE, maps_users=True))
    assert one(machine, "users of containers").verdict is Verdict.OK


# --- the engine's disk, snap, swap and specifications


def test_the_disk_of_the_engine_is_its_own_and_holds_images_twice_in_the_store_of_containerd() -> None:
    full = replace(MACHINE, engine=replace(ENGINE, place="/srv/docker", free_bytes=0))
    finding = one(full, "free disk of the engine")
    assert (finding.verdict, finding.fact) == (Verdict.WARNING, "0 B; at least 20 GiB is advised")
    assert finding.advice.startswith("/srv/docker: docker system prune")
    roomy = replace(ENGINE, place="/srv/docker", free_bytes=30 * GIB)
    assert one(replace(MACHINE, engine=roomy), "free disk of the engine").verdict is Verdict.OK
    twice = replace(MACHINE, engine=replace(roomy, containerd_store=True))
    assert "at least 40 GiB" in one(twice, "free disk of the engine").fact
    assert "overlay2 of containerd" in one(twice, "container engine").fact
    assert not found(replace(MACHINE, engine=replace(roomy, free_bytes=None)), "free disk of the engine")


def test_docker_from_snap_and_uncounted_swap_are_said_with_the_next_step() -> None:
    place = "/var/snap/docker/common/var-lib-docker"
    machine = replace(MACHINE, engine=replace(ENGINE, place=place, swap_limit=False, cgroup="version 1 by x"))
    assert one(machine, "files of the engine").verdict is Verdict.PROBLEM
    assert one(machine, "swap").verdict is Verdict.WARNING
    assert "cgroup version 1 by x" in one(machine, "container engine").fact
    assert not found(replace(MACHINE, engine=replace(ENGINE, swap_limit=True)), "swap")


def test_a_state_directory_on_a_remote_file_system_is_a_problem() -> None:
    machine = replace(MACHINE, host=replace(HOST, remote_type="nfs4"))
    finding = one(machine, "state directory")
    assert (finding.verdict, finding.fact) == (
        Verdict.PROBLEM, "/var/lib/runner is on a file system of type nfs4",
    )  # fmt: skip
    assert "RUNNER_STATE_DIR" in finding.advice


@pytest.mark.parametrize("names", [("all",), ("0", "1", "all"), ()])
def test_a_specification_that_names_no_uuids_is_a_problem_and_never_chosen(names: tuple[str, ...]) -> None:
    choice = choose_injection(replace(ENGINE, cdi_devices=names))
    assert choice.how is None
    assert f"names {', '.join(names) or 'nothing'}, and jobs ask for UUIDs" in choice.problem
    assert "--device-name-strategy=uuid" in choice.advice
    hook = replace(ENGINE, cdi_devices=names, runtimes=("nvidia", "runc"))
    assert choose_injection(hook).how == "hook"


def test_a_specification_that_cannot_be_read_is_named() -> None:
    engine = replace(ENGINE, cdi_files=(), cdi_devices=(), cdi_unreadable=("/etc/cdi/a.yaml",))
    assert choose_injection(engine).problem.endswith("; not readable: /etc/cdi/a.yaml")


def test_devices_that_the_engine_found_itself_need_no_file() -> None:
    machine = replace(MACHINE, engine=replace(ENGINE, cdi_files=()))
    assert one(machine, "devices in containers").fact == "by CDI (found by the engine)"
