"""Files in the directory of its code that a program misses."""

from pathlib import Path

import pytest

from runner.agent.attempts.diagnosis import find_exception
from runner.agent.attempts.missing import explain_missing
from runner.core.ports.code import LeftOut
from runner.files.job.load import parse_job
from runner.files.revision import CodeReference, Revision

WORK = Path("/state/jobs/7/work/1")
LEFT_OUT = (
    LeftOut("data", "directory", 3, 3 * 1024**3),
    LeftOut("weights", "link", target="/big/weights"),
    LeftOut("mine/tables", "directory", 1, 100),
)
PATHS = ("train.py", "src/mine/__init__.py", "tools/helpers.py", "deep/er/tools/helpers.py", "utils.py")


def explain(
    line: str, paths: tuple[str, ...] = PATHS, command: str = "[x]", *, in_container: bool = True
) -> str:
    code = CodeReference(snapshot="5e6f", files=1, bytes=2, left_out=LEFT_OUT)
    text = f"workload: {{kind: program, command: {command}, code: .}}\n"
    job = parse_job(text.encode(), Path("job.yaml"))
    path = "/home/ada/project/job.yaml"
    revision = Revision(job=job, path=path, accelerator="cpu", uid=1, gid=1, groups=(), user="ada", code=code)
    log = f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n{line}\n'
    raised = find_exception(log.encode())
    said = line if raised is None else raised.line
    return explain_missing(said, revision, WORK, lambda: paths, in_container=in_container)


@pytest.mark.parametrize(
    "line",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/code/data/train.bin'",
        f"FileNotFoundError: [Errno 2] No such file or directory: '{WORK}/data/train.bin'",
        "FileNotFoundError: [Errno 2] No such file or directory: './data/../data/x'",
        "OSError: Unable to open file (unable to open file: name = 'data/x.h5', errno = 2)",
        "FileNotFoundError: Couldn't find a dataset at /code/data/mine.",
        "ModuleNotFoundError: No module named 'data'",
        "ModuleNotFoundError: No module named 'data.sets'",
        "cat: data/train.bin: No such file or directory",
        "bash: line 1: data/train.bin: No such file or directory",
        "tail: cannot open 'data/train.bin' for reading: No such file or directory",
        "/usr/bin/python: No module named data.sets",
    ],
)
def test_a_missing_file_names_what_was_left_out(line: str) -> None:
    told = explain(line)
    assert told.startswith(
        "git ignores data (3 files, 3 GiB), and the job does not get it; to take data along"
    )
    assert "--mount /home/ada/project/data:/data/data" in told


def test_a_missing_link_and_a_package_within_one_are_named_too() -> None:
    assert explain("FileNotFoundError: [Errno 2] No such file or directory: 'weights/a'").startswith(
        "weights is a link to /big/weights"
    )
    assert explain("ModuleNotFoundError: No module named 'mine.tables'").startswith("git ignores mine/tables")


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("mine", "mine is in the code of the job, below src: runner run --env PYTHONPATH=src"),
        ("mine.model", "mine is in the code of the job, below src"),
        ("helpers", "helpers is in the code of the job, below tools: runner run --env PYTHONPATH=tools"),
        ("utils", "utils is in the code of the job: runner run --env PYTHONPATH=."),
    ],
)
def test_a_module_of_the_code_is_never_advised_to_be_installed(module: str, told: str) -> None:
    line = f"ModuleNotFoundError: No module named '{module}'"
    assert explain(line).startswith(told)
    assert "-e ." not in explain(line)
    assert " or -e . in the requirements puts it" in explain(line, (*PATHS, "pyproject.toml"))


@pytest.mark.parametrize(
    "line",
    [
        "ModuleNotFoundError: No module named 'tqdm'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'other/train.bin'",
        "KeyError: 'data'",
    ],
)
def test_what_is_elsewhere_is_not_explained(line: str) -> None:
    assert explain(line) == ""


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("util.helper", "util in the code of the job has no module helper; did you mean util.helpers?"),
        ("util.zzz.x", "util.zzz in the code of the job has no module x"),
        ("util.helpers", "util is in the code of the job: runner run --env PYTHONPATH=."),
        ("sklearn.svm", "its package is scikit-learn: runner run --with scikit-learn, or image.requirements"),
        ("cv2", "its package is opencv-python-headless: "),
    ],
)
def test_a_module_of_a_package_and_one_of_another_name_are_told(module: str, told: str) -> None:
    said = explain(f"ModuleNotFoundError: No module named '{module}'", ("train.py", "util/helpers.py"))
    assert said.startswith(told)


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("git/tools/net.py", "."),
        ("src/git/net.py", "src"),
        ("git.cpython-311-x86_64-linux-gnu.so", "."),
        ("build/lib/git/__init__.py", "build/lib"),
    ],
)
def test_a_module_of_any_form_in_the_code_is_never_a_strangers_package(path: str, below: str) -> None:
    said = explain("ModuleNotFoundError: No module named 'git'", ("train.py", path))
    assert f"runner run --env PYTHONPATH={below} puts it on the path" in said
    assert "GitPython" not in said


@pytest.mark.parametrize(
    "said",
    [
        "'datasets' (unknown location)",
        "'datasets' (/code/datasets/__init__.py)",
        "partially initialized module 'datasets.mine' (most likely due to a circular import) (/code/x)",
    ],
)
def test_a_name_that_a_module_of_the_code_lacks_is_not_looked_for_in_a_package(said: str) -> None:
    line = f"ImportError: cannot import name 'load' from {said}"
    module = said.split("'")[1]
    told = (
        f"{module} in the code of the job has no name load; if a package so called is meant, rename it there"
    )
    assert explain(line, ("train.py", "datasets/mine.py")) == told
    assert explain(line, ("train.py", "data/sets.py")) == ""


@pytest.mark.parametrize(
    ("library", "package"),
    [
        ("libGL.so.1", "libgl1"),
        ("libSM.so.6", "libsm6"),
        ("libX11.so.6", "libx11-6"),
        ("libgthread-2.0.so.0", "libglib2.0-0"),
        ("libglib-2.0.so.0", "libglib2.0-0"),
        ("libsndfile.so.1", "libsndfile1"),
        ("libportaudio.so.2", "libportaudio2"),
    ],
)
def test_a_library_of_the_system_is_told_with_its_debian_package(library: str, package: str) -> None:
    line = f"ImportError: {library}: cannot open shared object file: No such file or directory"
    step = f"runner run --system {package}, or image.system: [{package}], installs it"
    assert explain(line) == f"the library {library} is not in the image; {step}"
    assert explain(line.replace("ImportError", "OSError"), in_container=False) == (
        f"the library {library} is not on this machine"
    )


def test_the_library_of_a_driver_comes_with_a_gpu() -> None:
    line = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"
    assert explain(line).endswith("a job has it if it asks for a GPU: runner run --gpus 1")


def test_a_script_of_a_package_is_told_to_start_as_its_module() -> None:
    line = "ImportError: attempted relative import with no known parent package"
    assert explain(line, command="[python, ./mine/train.py]").endswith(
        ": python -m mine.train in place of ./mine/train.py"
    )
    assert explain(line, command="[python, train.py]") == ""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'git'",
            "runner run --system git, or image",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'accelerate'", "run --with accelerate, or"),
        (
            "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)",
            "packages are asked for before: runner run --with ninja, or image.requirements",
        ),
        (
            "ImportError: it requires Accelerate: `pip install 'accelerate>=0.26'`",
            "--with 'accelerate>=0.26',",
        ),
        ("ImportError: please run pip install -U foo[bar].", "--with 'foo[bar]', or"),
    ],
)
def test_what_an_image_lacks_is_told_with_the_way_in_a_job(line: str, told: str) -> None:
    assert told in explain(line)
    assert explain(line, in_container=False) == ""


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'git'", "src/git/__init__.py"),
        ("ImportError: pip install my-model first", "my_model/net.py"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'", "train.py"),
    ],
)
def test_what_the_code_has_or_nobody_knows_is_not_advised(line: str, path: str) -> None:
    assert explain(line, ("train.py", path)) == ""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("python: can't open file '/home/ada/project/train.py': [Errno 2] No such file", "write ./train.py"),
        ("runner: 1: exec: /home/ada/project/run.sh: not found", "begins in its code: write ./run.sh"),
        ("cat: /home/ada/other/x.txt: No such file or directory", "--mount /home/ada/other:/data/other"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/set'",
            "--mount /scratch/set:/data/set",
        ),
        ("FileNotFoundError: '/data/imagenet/train' not found", "nothing is mounted at /data/imagenet"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/tmp/x'", ""),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/usr/share/dict'", ""),
    ],
)
def test_a_path_of_the_host_is_told_in_a_container(line: str, told: str) -> None:
    said = explain(line, in_container=True)
    assert told in said
    assert bool(said) == bool(told)
    assert explain(line, in_container=False) == ""
