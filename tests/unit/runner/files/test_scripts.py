"""The script of a command, and its absence from the code."""

import pytest

from runner.files.scripts import describe_absent, find_script, find_unstartable

PATHS = ("README.md", "evaluate.py", "lab/src/train.py", "run.sh", "src/train.py", "trian.txt")


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("python train.py --lr 1", "train.py"),
        ("/usr/bin/python3.12 -u -W ignore -X dev src/train.py", "src/train.py"),
        ("env A=1 timeout 60 nice -n 5 python3 train", "train"),
        ("uv run python train.py", "train.py"),
        ("bash -eu -o pipefail run.sh x", "run.sh"),
        ("./run.sh", "./run.sh"),
        ("env A=1 build/app", "build/app"),
        ("Rscript fit.R", "fit.R"),
        ("torchrun --nproc-per-node 2 train.py --out x.py", "train.py"),
        ("accelerate launch --config_file a.yaml train.py", "train.py"),
        ("papermill in.ipynb out.ipynb", "in.ipynb"),
    ],
)
def test_the_script_of_an_interpreter_or_launcher_is_found(line: str, script: str) -> None:
    command = line.split()
    at = find_script(command, on_path=False)
    assert at is not None
    assert command[at] == script


@pytest.mark.parametrize(
    "line",
    [
        "",
        "python",
        "python -m train",
        "python -um train",
        "python -c 1",
        "python - x.py",
        "python -s x.py",
        "python /opt/app/train.py",
        "python ../train.py",
        "python ~/train.py",
        "python $HOME/train.py",
        "/opt/app/train.py",
        "bash -c ls",
        "bash -lc ls",
        "bash -s x",
        "bash --rcfile x run.sh",
        "env -C src python train.py",
        "env --chdir=src python train.py",
        "torchrun -m lab.train",
        "torchrun --no-python ./app train.py",
        "Rscript -e 1",
        "train.py",
        "pytest tests/test_a.py",
        "make -C src",
        "jupyter nbconvert --execute in.ipynb",
    ],
)
def test_whatever_is_not_clearly_a_script_of_the_code_is_none(line: str) -> None:
    assert find_script(line.split(), on_path=False) is None


def test_a_shell_may_find_a_script_on_the_path_of_an_image_of_ones_own() -> None:
    assert find_script(["bash", "entry.sh"], on_path=True) is None
    assert find_script(["bash", "bin/entry.sh"], on_path=True) == 1
    assert find_script(["python", "entry.py"], on_path=True) == 1


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("train.py", "src/train.py"),
        ("./train.py", "src/train.py"),
        ("a/b/train.py", "src/train.py"),
        ("evalaute.py", "evaluate.py"),
        ("run", "run.sh"),
        ("nothing.py", None),
    ],
)
def test_the_file_that_may_be_meant_is_named(name: str, meant: str | None) -> None:
    hint = "" if meant is None else f"; did you mean {meant}?"
    assert describe_absent(name, PATHS) == f"{name} is not in the code of the job{hint}"


@pytest.mark.parametrize(
    ("line", "at", "fact"),
    [
        ("run.sh", 0, "a program of the working directory begins with ./ : ./run.sh, or bash run.sh"),
        ("env A=1 fit.R", 2, "a program of the working directory begins with ./ : ./fit.R, or Rscript fit.R"),
        ("./run.sh x", 0, "./run.sh may not be executed: chmod +x ./run.sh, or bash ./run.sh"),
    ],
)
def test_a_program_that_does_not_start_so_is_told_with_the_lines_that_work(
    line: str, at: int, fact: str
) -> None:
    assert find_unstartable(line.split(), {"run.sh": False, "fit.R": True}) == (at, fact)


@pytest.mark.parametrize(
    "line",
    ["", "./fit.R", "bash run.sh", "make", "/run.sh", "other.sh", "uv run run.sh", "/opt/uv run ./run.sh"],
)
def test_of_any_other_program_nothing_is_known(line: str) -> None:
    assert find_unstartable(line.split(), {"run.sh": False, "fit.R": True, "make": True}) is None
