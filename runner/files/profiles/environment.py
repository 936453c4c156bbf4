"""Environment variables that follow from a profile.

Some switches must be set before torch is imported, so the launcher sets them: threads, the allocator, the
workspace of cuBLAS and the cache of compiled code.
"""

from collections.abc import Mapping
from pathlib import PurePath

from jobs.contract import Profile, thread_count
from runner.files.profiles.load import Accelerator


def build_environment(  # noqa: PLR0913  (each is said by another part)
    profile: Profile,
    accelerator: Accelerator,
    cpus: float,
    cache: PurePath,
    scratch: PurePath,
    *,
    cpu_shares: int = 1,
) -> Mapping[str, str]:
    """Return the variables that follow from a profile.

    Args:
        profile: The settings in force.
        accelerator: Which of them mean something.
        cpus: The quota of the attempt.
        cache: A directory of the job, which its attempts share and no other job can write to.
        scratch: A directory of this attempt alone.
        cpu_shares: Into how many parts the quota is cut for the threads of one process.
    """
    found = {
        "OMP_NUM_THREADS": str(thread_count(profile, cpus, cpu_shares)),
        "OMP_WAIT_POLICY": "PASSIVE",  # a thread that spins uses up the quota of those that work
        **_compiled_code(cache if profile.compile_cache else scratch),
    }
    if accelerator != "cpu":
        found |= _of_a_device(profile, accelerator)
    return found


def _compiled_code(below: PurePath) -> dict[str, str]:
    """Return the caches of compiled code, which is executed and must not be writable by others."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(below / "inductor"),
        "TRITON_CACHE_DIR": str(below / "triton"),
    }


def _of_a_device(profile: Profile, accelerator: Accelerator) -> dict[str, str]:
    expandable = profile.allocator == "expandable_segments"
    # Of the three names for it torch 2.13 reads this one first, on ROCm too; what an image says is overruled.
    found = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"}
    if accelerator == "cuda":
        found["CUDA_LAUNCH_BLOCKING"] = str(int(profile.launch_blocking))
    elif profile.launch_blocking:
        found["AMD_SERIALIZE_KERNEL"] = "3"  # what torch itself recommends on ROCm
    if profile.deterministic:
        found["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it, deterministic mode refuses matrix products
    return found
