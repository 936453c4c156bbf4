"""Packages of jobs through a real daemon, engine and resolver; a folder of wheels is the index."""

import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.packages.lock import parse_lock
from images.store import ImageStore
from tests.fakes.daemon.service import Service, service
from tests.fakes.engine.wheel_folder import make_wheel
from tests.fakes.workloads.counter_image import counter_image, docker_client

pytestmark = pytest.mark.engine

SHOW = "import bar, baz, torch; print('bar', bar.VERSION, bar.__file__); print('torch', torch.__version__)"


@pytest.fixture(scope="module")
def wheels() -> Iterator[Path]:
    """A folder that every user can read; the directories of pytest are private."""
    with tempfile.TemporaryDirectory(prefix="wheels of ours ") as made:
        folder = Path(made)
        folder.chmod(0o755)
        fill(folder)
        yield folder


def fill(folder: Path) -> None:
    make_wheel(folder, "bar", "1.0", requires=("baz>=2", "torch"), scripts={"bar": "bar:main"})
    make_wheel(folder, "baz", "2.0")
    make_wheel(folder, "setuptools", "99.0", files={"setuptools/build_meta.py": BACKEND})
    make_wheel(folder, "wheel", "99.0")


BACKEND = '''\
import os, zipfile

INFO = "sourced-3.0.dist-info"


def build_wheel(out, settings):
    status = open("/proc/self/status").read()
    walls = [line.split()[1] for line in status.splitlines() if line.startswith(("CapEff", "NoNewPrivs"))]
    seen = f"{os.getuid()} {os.listdir('/sys/class/net')} {walls}"
    with zipfile.ZipFile(out + "/sourced-3.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sourced.py", f"SEEN = {seen!r}")
        wheel.writestr(INFO + "/METADATA", """Metadata-Version: 2.1
Name: sourced
Version: 3.0
""")
        wheel.writestr(INFO + "/WHEEL", """Wheel-Version: 1.0
Root-Is-Purelib: true
Tag: py3-none-any
""")
        wheel.writestr(INFO + "/RECORD", "")
    return "sourced-3.0-py3-none-any.whl"
'''


def make_source(folder: Path, name: str, version: str, pyproject: str = "") -> None:
    """Write a source distribution that the backend above builds, whatever it contains."""
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as tar:
        about = f"Metadata-Version: 1.0\nName: {name}\nVersion: {version}\n"
        for path, text in (("PKG-INFO", about), ("pyproject.toml", pyproject), ("setup.py", "")):
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))


@pytest.fixture(scope="module")
def daemon(
    engine: str, base_image: str, wheels: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    packages = {"find_links": [str(wheels)], "no_index": True, "system": ["libsndfile*", "no-such-*"]}
    packages |= {"dockerfiles": True}
    with (
        counter_image(engine, base_image) as counter,
        service(executor="docker", packages=packages, allowed_images={"counter": counter}) as made,
    ):
        made.root.chmod(0o755)  # as the parents of a state directory are
        yield made.start()
        made.assert_whole()


def job(daemon: Service, name: str, image: dict[str, object], *command: str) -> Path:
    return daemon.file(
        name,
        workload={"kind": "program", "command": list(command)},
        image=image,
        resources={"cpus": 1, "memory": "1GiB"},
        retry={"max_attempts": 1},
    )


def test_a_program_imports_the_packages_of_its_requirements_and_the_torch_of_the_image(
    daemon: Service,
) -> None:
    (daemon.root / "requirements.txt").write_text("# ours\nbar\n")
    file = job(daemon, "imports", {"requirements": "requirements.txt"}, "python", "-c", SHOW)
    job_id = daemon.submit(file)
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
    log = daemon.log(job_id)
    assert "bar 1.0 /opt/packages/lib/python3" in log
    assert "torch 2." in log


def test_scripts_of_packages_are_found(daemon: Service) -> None:
    job_id = daemon.submit(job(daemon, "script", {"requirements": ["bar"]}, "bar"))
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
    assert daemon.log(job_id).strip() == "1.0"


def test_workers_of_the_torchrun_of_the_image_import_the_packages(daemon: Service) -> None:
    says = ("-m", "timeit", "-n1", "-r1", "import bar; print('bar', bar.VERSION, bar.__file__)")
    command = ("torchrun", "--standalone", "--nproc-per-node=1", *says)
    job_id = daemon.submit(job(daemon, "torchrun", {"requirements": ["bar"]}, *command))
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
    assert "bar 1.0 /opt/packages/lib/python3" in daemon.log(job_id)


def test_a_project_of_the_users_own_is_found_beside_its_packages_and_what_the_image_has(
    daemon: Service,
) -> None:
    code = daemon.root / "own"
    (code / "src/mine").mkdir(parents=True)
    (code / "lib").mkdir()
    (code / "lib/more.py").touch()
    project = '[project]\nname = "mine"\nversion = "1.4"\ndependencies = ["bar"]\n'
    (code / "pyproject.toml").write_text(f'{project}[project.scripts]\nmine-train = "mine:main"\n')
    show = "import bar, jobs, more, os; print('mine has', bar.VERSION, __file__, os.getcwd())"
    (code / "src/mine/__init__.py").write_text(f"def main():\n    {show}\n")
    file = daemon.file(
        "own",
        workload={"kind": "program", "command": ["bash", "-c", "cd /tmp; mine-train"], "code": str(code)},
        image={"requirements": ["-e own"]},
        environment={"PYTHONPATH": "/code/lib"},
        resources={"cpus": 1, "memory": "1GiB"},
        retry={"max_attempts": 1},
    )
    job_id = daemon.submit(file)
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
    assert "mine has 1.0 /code/src/mine/__init__.py /tmp" in daemon.log(job_id)


def test_jobs_with_the_same_packages_share_an_image(daemon: Service) -> None:
    ids = [
        daemon.submit(job(daemon, f"same{number}", {"requirements": wanted}, "true"))
        for number, wanted in enumerate((["bar"], ["baz", "bar>=1"]))
    ]
    images = {daemon.ends(job_id)["image"] for job_id in ids}
    assert len(images) == 1


def test_a_source_distribution_is_built_as_its_submitter_without_a_network(
    daemon: Service, wheels: Path
) -> None:
    about = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    make_source(wheels, "sourced", "3.0", about)
    show = "import sourced; print(sourced.SEEN)"
    job_id = daemon.submit(job(daemon, "sourced", {"requirements": ["sourced"]}, "python", "-c", show))
    found = daemon.ends(job_id)
    assert found["outcome"] == "succeeded", daemon.log(job_id)
    assert daemon.log(job_id).split(maxsplit=1)[1].strip() == "['lo'] ['0000000000000000', '1']"
    assert "[tool.runner.built]" in daemon.job(job_id)["revision"]["lock"]


def test_a_build_that_fails_is_told_at_its_requirement(daemon: Service, wheels: Path) -> None:
    make_source(
        wheels, "broken", "1.0", '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "nothing"\n'
    )
    file = job(daemon, "broken", {"requirements": ["bar", "broken"]}, "true")
    said = daemon.runner("submit", str(file), code=2)
    assert 'image.requirements[1]: "broken": broken 1.0: its build fails: ModuleNotFoundError' in said


def test_a_program_finds_the_debian_packages_that_its_operator_allows(daemon: Service) -> None:
    script = "import bar, ctypes; print(bool(ctypes.CDLL('libsndfile.so.1').sf_version_string), bar.VERSION)"
    wanted: dict[str, object] = {"system": ["libsndfile1"], "requirements": ["bar"]}
    first = daemon.submit(job(daemon, "sound", wanted, "python", "-c", script))
    ended = daemon.ends(first)
    assert ended["outcome"] == "succeeded", daemon.log(first)
    assert daemon.log(first).strip() == "True 1.0"
    found = parse_lock(daemon.job(first)["revision"]["lock"]).system
    assert {"libsndfile1", "libflac12"} <= {each.name for each in found}
    made = remove_system_image(daemon, ended["image"])
    again = daemon.submit(
        job(daemon, "sound-again", {"system": ["libsndfile1"]}, "python", "-c", "print('ok')")
    )
    ended = daemon.ends(again)
    assert ended["outcome"] == "succeeded", daemon.log(again)
    assert remove_system_image(daemon, ended["image"]) == made  # the same bytes, though it was built anew


C_PROGRAM = """\
#include <stdio.h>
#include <unistd.h>
int main(void) { printf("hello from C, uid %d\\n", (int) getuid()); return 0; }
"""
DOCKERFILE = """\
FROM ${BASE} AS build
USER root
COPY src/hello.c /src/hello.c
RUN mkdir /made && gcc -O2 -o /made/hello /src/hello.c && ls /sys/class/net > /made/net
FROM ${BASE}
COPY --from=build /made /opt/made
ENV GREETING=built
"""


def c_project(daemon: Service, name: str, dockerfile: str = DOCKERFILE, **image: object) -> Path:
    """Write a C program with its Dockerfile, and a job that runs it."""
    place = daemon.root / name
    (place / "src").mkdir(parents=True)
    (place / "src" / "hello.c").write_text(C_PROGRAM)
    (place / "Dockerfile").write_text(dockerfile)
    shell = "/opt/made/hello && cat /opt/made/net && echo $GREETING"
    return daemon.file(
        f"{name}-job",
        workload={"kind": "program", "command": ["sh", "-c", shell], "code": name},
        image={"dockerfile": f"{name}/Dockerfile", **image},
        resources={"cpus": 1, "memory": "1GiB"},
        retry={"max_attempts": 1},
    )


def test_a_c_program_that_is_compiled_in_its_dockerfile_runs_as_a_job(daemon: Service) -> None:
    job_id = daemon.submit(c_project(daemon, "c"))
    found = daemon.ends(job_id)
    assert found["outcome"] == "succeeded", (daemon.log(job_id), found)
    greeting, network, variable = daemon.log(job_id).split("\n")[:3]
    assert greeting.startswith("hello from C, uid ")
    assert not greeting.endswith(" 0")  # the build is root of its container, the job is not
    assert (network, variable) == ("lo", "built")  # the commands of a Dockerfile have no network here
    again = daemon.submit(daemon.root / "c-job.yaml")
    assert daemon.ends(again)["image"] == found["image"]
    with docker_client(daemon.engine) as client:
        assert client.images.get(found["image"]).labels["runner.kind"] == "dockerfile"


def test_a_dockerfile_can_patch_a_package_in_place(daemon: Service) -> None:
    place = daemon.root / "patched"
    place.mkdir()
    find = "$(python -c 'import pydantic; print(pydantic.__file__)')"
    lines = ("FROM ${BASE}", "USER root", f"RUN echo 'PATCHED = \"in place\"' >> {find}")
    (place / "Dockerfile").write_text("\n".join(lines) + "\n")
    script = "import pydantic; print(pydantic.PATCHED)"
    file = daemon.file(
        "patched-job",
        workload={"kind": "program", "command": ["python", "-c", script], "code": "patched"},
        image={"dockerfile": "patched/Dockerfile"},
        resources={"cpus": 1, "memory": "1GiB"},
        retry={"max_attempts": 1},
    )
    job_id = daemon.submit(file)
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
    assert daemon.log(job_id).splitlines()[-1] == "in place"


def test_packages_are_added_to_the_image_of_a_dockerfile(daemon: Service) -> None:
    file = c_project(daemon, "c-and-python", requirements=["bar"])
    file.write_text(file.read_text().replace("echo $GREETING", "bar"))
    job_id = daemon.submit(file)
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
    assert daemon.log(job_id).split()[-1] == "1.0"


def test_a_dockerfile_that_fails_fails_the_job_with_what_its_command_has_said(daemon: Service) -> None:
    bad = "FROM ${BASE}\nRUN echo no such thing && false\n"
    job_id = daemon.submit(c_project(daemon, "c-bad", bad), end="failed")
    found = daemon.ends(job_id)
    assert (found["outcome"], found["attempts"]) == ("failed", [])
    assert "no such thing" in daemon.runner("logs", job_id, "--build")


def test_a_dockerfile_that_reaches_for_more_is_refused_at_its_line(daemon: Service) -> None:
    said = daemon.runner(
        "submit", str(c_project(daemon, "c-add", "FROM ${BASE}\nADD http://x/y /y\n")), code=2
    )
    assert "c-add/Dockerfile:2:1: ADD http://x/y /y: ADD downloads with the network of the engine" in said


def test_a_dockerfile_that_the_kept_code_lacks_is_refused_at_its_field(daemon: Service) -> None:
    file = c_project(daemon, "c-left-out")
    (daemon.root / "c-left-out/.runnerignore").write_text("Dockerfile\n")
    said = daemon.runner("submit", str(file), code=2)
    assert "image.dockerfile: Dockerfile is left out of the code that is kept" in said


def remove_system_image(daemon: Service, image: str) -> tuple[list[str], str]:
    """Remove the image with Debian packages that an image has or is; return its layers and its digest."""
    with docker_client(daemon.engine) as client:
        found = client.images.get(image)
        if found.labels["runner.kind"] == "packages":
            found = client.images.get(found.labels["runner.below"])
        assert found.labels["runner.kind"] == "system"
        for tag in found.tags:
            client.images.remove(tag, force=True)  # a container that has ended may still be there
        return list(found.attrs["RootFS"]["Layers"]), str(found.labels["runner.digest"])


def test_debian_packages_that_cannot_be_had_are_refused(daemon: Service) -> None:
    file = job(daemon, "bash", {"system": ["libsndfile1", "openssh-server"]}, "true")
    said = daemon.runner("submit", str(file), code=3)
    assert "image.system (line 1): openssh-server: not on the list (libsndfile*, no-such-*)" in said
    assert "the operator decides (packages.system in the settings)" in said
    file = job(daemon, "none", {"system": ["libsndfile1", "no-such-thing"]}, "true")
    said = daemon.runner("submit", str(file), code=2)
    assert 'image.system[1]: "no-such-thing": Unable to locate package no-such-thing' in said


def test_another_torch_than_that_of_the_image_is_an_environment_of_its_own(
    daemon: Service, wheels: Path
) -> None:
    make_wheel(wheels, "torch", "2.12.0", requires=("baz",))
    (daemon.root / "other.txt").write_text("bar\ntorch==2.12.0\n")
    script = "import torch, bar; print(torch.VERSION, torch.__file__, bar.VERSION)\nimport numpy"
    file = job(daemon, "other-torch", {"requirements": "other.txt"}, "python", "-c", script)
    job_id = daemon.submit(file, end="failed")
    daemon.ends(job_id)
    assert "2.12.0 /opt/packages/lib/python3" in daemon.log(job_id)
    assert "No module named 'numpy'" in daemon.log(job_id)  # nothing comes from the image
    (daemon.root / "other.txt").write_text("bar\ntorch==2.1.0\n")
    said = daemon.runner("submit", str(file), code=2)
    assert "other.txt:2: torch==2.1.0: there is no version of torch==2.1.0" in said


def test_a_lock_beside_the_job_file_gives_the_same_packages(daemon: Service, wheels: Path) -> None:
    file = job(daemon, "locked", {"requirements": ["bar"]}, "bar")
    assert daemon.runner("lock", str(file)).strip().endswith("pylock.toml: 2 packages")
    make_wheel(wheels, "bar", "1.1", requires=("baz>=2",), scripts={"bar": "bar:main"})
    (wheels / "bar-1.1-py3-none-any.whl").chmod(0o644)
    again = job(daemon, "locked-again", {"requirements": "pylock.toml"}, "bar")
    job_id = daemon.submit(again)
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
    assert daemon.log(job_id).strip() == "1.0"
    (wheels / "bar-1.1-py3-none-any.whl").unlink()


def test_a_lock_that_cannot_be_written_is_told(daemon: Service) -> None:
    file = job(daemon, "unwritten", {"requirements": ["bar"]}, "bar")
    said = daemon.runner("lock", str(file), "--output", "/nowhere/pylock.toml", code=2)
    assert "/nowhere/pylock.toml: cannot be written: No such file or directory" in said
    plain = daemon.file("plain", workload={"kind": "program", "command": ["true"]})
    assert "names no packages" in daemon.runner("lock", str(plain), code=2)


def test_an_operator_makes_an_image_with_packages_and_looks_into_it(daemon: Service) -> None:
    wanted = daemon.root / "wanted.txt"
    wanted.write_text("bar\n")
    daemon.runner("images", "build", "--with", str(wanted), "--name", "runner-test-lab")
    try:
        shown = daemon.runner("images", "show", "runner-test-lab:latest")
        assert "bar\t1.0" in shown.splitlines()
        assert daemon.answer("images", "show", "runner-test-lab:latest", "--json")["packages"]["baz"] == "2.0"
    finally:
        with docker_client(daemon.engine) as client:
            client.images.remove("runner-test-lab:latest")
    wanted.write_text("\nno-such\n")
    said = daemon.runner("images", "build", "--with", str(wanted), "--name", "runner-test-lab", code=2)
    assert "wanted.txt:2: no-such: " in said
    assert "go together" in daemon.runner("images", "build", "--name", "x", code=2)
    assert "is not in the engine" in daemon.runner("images", "show", "no-such:1", code=4)
