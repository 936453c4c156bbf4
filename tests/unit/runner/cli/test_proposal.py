from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.cli.proposal import propose
from runner.files.job.load import parse_job
from runner.files.job.model import JobFile
from tests.unit.runner.cli.conftest import Invoke

HUGGING_FACE = """
from transformers import Trainer, TrainingArguments, HfArgumentParser
parser.add_argument("--resume_from_checkpoint")
args = TrainingArguments(output_dir="out/", save_strategy="steps")
Trainer(args=args).train()
"""
PLAIN = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.save({"a": 1}, "out/ckpt.pt")
"""


def job_for(directory: Path) -> JobFile:
    proposal = propose(directory)
    assert proposal is not None
    return parse_job(proposal.text.encode(), Path("job.yaml"))


def text_for(directory: Path) -> str:
    proposal = propose(directory)
    assert proposal is not None
    return proposal.text


def test_a_script_with_requirements_becomes_a_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "other.py").write_text("import torch")
    (tmp_path / "requirements.txt").write_text("tqdm\n")
    job = job_for(tmp_path)
    assert (job.name, job.image.requirements) == (f"{tmp_path.name}-train", "requirements.txt")
    assert getattr(job.workload, "command", None) == ("python", "train.py")


def test_a_project_with_dependencies_names_them(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print(1)")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["tqdm"]\n')
    assert job_for(tmp_path).image.requirements == "pyproject.toml"
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\n")
    assert job_for(tmp_path).image.requirements is None
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup()\n")
    assert job_for(tmp_path).image.requirements is None
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(install_requires=['tqdm'])\n")
    assert job_for(tmp_path).image.requirements == "setup.py"
    (tmp_path / "setup.cfg").write_text("[options]\ninstall_requires =\n    tqdm\n")
    assert job_for(tmp_path).image.requirements == "setup.cfg"
    (tmp_path / "pyproject.toml").write_text("[")  # which is told with its line
    assert job_for(tmp_path).image.requirements == "pyproject.toml"


def test_the_only_script_is_taken_and_of_several_none(tmp_path: Path) -> None:
    assert propose(tmp_path) is None
    assert propose(tmp_path / "missing") is None
    (tmp_path / "fit model.py").write_text("print(1)")
    (tmp_path / "test_it.py").write_text("")
    job = job_for(tmp_path)
    assert job.name == "fit-model"
    (tmp_path / "second.py").write_text("")
    with pytest.raises(UsageError, match=r"^the script may be any of fit model.py, second.py; name it with"):
        propose(tmp_path)


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (["tool/__init__.py", "tool/__main__.py"], "[python, -m, tool]"),
        (["src/tool/__init__.py", "src/tool/__main__.py"], "[python, -m, tool]"),
        (["fit.R"], "[Rscript, fit.R]"),
        (["main.jl", "fit.ipynb"], "[julia, main.jl]"),
        (["fit.ipynb"], "[jupyter, nbconvert, --to, notebook, --execute, fit.ipynb, --output, done.ipynb]"),
    ],
)
def test_without_a_script_a_package_or_a_notebook_is_started(
    tmp_path: Path, files: list[str], command: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "requirements.txt").write_text("tqdm\n")
    found = propose(tmp_path)
    assert found is not None
    assert f"command: {command}" in found.text
    packages = (
        '["-r requirements.txt", nbconvert, ipykernel]' if "nbconvert" in command else "requirements.txt"
    )
    assert f"requirements: {packages}" in found.text


@pytest.mark.parametrize(
    ("files", "script"),
    [
        (["src/train.py", "src/model.py"], "src/train.py"),
        (["src/pkg/main.py", "tools/deep/er/train.py"], "src/pkg/main.py"),  # the nearest
        (["app/fit.py", "app/__init__.py", "lib.py"], "lib.py"),
        (["app/fit.py", "app/nets.py"], "app/fit.py"),  # the only one that is started
        (["train.sh"], "train.sh"),
        (["go.sh"], "go.sh"),
        (["venv/lib/train.py", ".git/train.py", "tests/main.py"], None),
    ],
)
def test_a_script_in_a_directory_below_is_found(tmp_path: Path, files: list[str], script: str | None) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(
            'if __name__ == "__main__":\n    print(1)\n' if "nets" not in name else ""
        )
    if script is None:
        assert propose(tmp_path) is None
    else:
        command = getattr(job_for(tmp_path).workload, "command", ())
        assert command == ("bash" if script.endswith(".sh") else "python", script)


def test_of_two_scripts_as_likely_none_is_taken(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text("")
    result = invoke("init")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "a/train.py, b/train.py" in result.stderr
    assert "runner run --save job.yaml python a/train.py" in result.stderr
    assert not Path("job.yaml").exists()


def test_what_saves_and_resumes_on_its_own_is_described(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HUGGING_FACE)
    job = job_for(tmp_path)
    assert job.checkpoint.files == "out/checkpoint-*"
    assert job.checkpoint.resume_args == ("--resume_from_checkpoint", "{newest}")


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("import lightning.pytorch as pl", "Attached().fit(trainer"),
        ("from pytorch_lightning import Trainer", "Attached().fit(trainer"),
        ("from transformers import Trainer", "Attached().train(trainer)"),
        (PLAIN, "attach_states(model=model"),
        (PLAIN, '#   files: "out/ckpt.pt"'),
        (PLAIN, "write gpus: 1"),
        ("import torch.distributed as d\nd.init_process_group()", "[torchrun, --standalone"),
    ],
)
def test_frameworks_are_recognised_by_their_imports(tmp_path: Path, source: str, word: str) -> None:
    (tmp_path / "train.py").write_text(source)
    assert word in text_for(tmp_path)
    job_for(tmp_path)  # it is valid


def test_a_script_that_is_resumable_already_gets_no_advice(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nfrom gpu_job_runner.attach import attach\n")
    assert "attach_states" not in text_for(tmp_path)


@pytest.mark.parametrize("path", ["/abs/ckpt.pt", "../up.pt", "a$b.pt", 'a"b.pt', "~/x.pt", "a*b.pt"])
def test_a_path_that_the_field_would_refuse_is_not_proposed(tmp_path: Path, path: str) -> None:
    (tmp_path / "train.py").write_text(f"import torch\ntorch.save({{}}, {path!r})\n")
    assert path not in text_for(tmp_path)
    job_for(tmp_path)


@pytest.mark.parametrize("source", [b"def f(", b"\xff\xfe", b"\0", b"#" * 2_000_000])
def test_a_source_that_cannot_be_parsed_tells_nothing(tmp_path: Path, source: bytes) -> None:
    (tmp_path / "train.py").write_bytes(source)
    assert job_for(tmp_path).name.endswith("-train")


def test_init_says_what_it_has_found(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(HUGGING_FACE)
    Path("requirements.txt").write_text("transformers\n")
    result = invoke("init")
    assert result.stderr == (
        "wrote job.yaml for train.py with requirements.txt (Hugging Face Trainer);"
        " start it with: runner submit job.yaml --follow\n"
    )
    assert invoke("init", "--training", "other.yaml").exit_code == 0
    assert "kind: causal_lm" in Path("other.yaml").read_text()
