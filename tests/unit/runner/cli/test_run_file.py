from pathlib import Path

import pytest

from runner.base import yaml
from runner.cli.run_file import CommandLine, Value, default_name, of_option, relative, yaml_text
from runner.files.job.load import parse_job


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["papermill", "train.ipynb", "done.ipynb", "-p", "lr", "0.1"], "train"),
        (["python", "train.py", "--lr", "3"], "train"),
        (["/usr/bin/python3.11", "-u", "src/my train.py"], "my-train"),
        (["python", "-m", "pkg.finetune"], "finetune"),
        (["python", "-m", "pkg.__main__"], "pkg"),
        (["torchrun", "--nproc-per-node", "2", "main.py"], "main"),
        (["bash", "-lc", "cd sub && python -u ./fit.py --lr 3 | tee log"], "fit"),
        (["env", "A=1", "nice", "./simulate"], "simulate"),
        (["bash", "-c", "make all"], "make-all"),
        (["sh", "-c", "df -h /dev/shm | tail -1"], "df"),
        (["sh", "-c", "/usr/bin/printf hello; exit 3"], "printf-hello"),
        (["sh", "-c", "; true"], "true"),
        (["timeout", "10", "sleep", "3"], "sleep"),
        (["true"], "true"),
        (["7z"], "7z"),
        (["env", "7"], "env"),
        (["./123"], "job-123"),
        (["..."], "job"),
        (["x" * 100 + ".py"], "x" * 63),
    ],
)
def test_a_job_is_named_after_its_script_else_its_program(command: list[str], name: str) -> None:
    assert default_name(command) == name


@pytest.mark.parametrize(
    ("script", "directory", "name"),
    [
        ("train.py", "/home/ann/vit", "vit-train"),
        ("./main.py", "/home/ann/my vit/", "my-vit-main"),
        ("src/train.py", "/home/ann/vit", "vit-train"),
        ("bert/scripts/run.sh", "/home/ann", "bert-run"),
        ("/srv/bert/eval.ipynb", None, "bert-eval"),
        ("/srv/bert/eval.ipynb", "/home/ann/vit", "bert-eval"),
        ("../gpt/train.py", "/home/ann/vit", "gpt-train"),
        ("train.py", "/home/ann", "train"),
        ("train.py", "/", "train"),
        ("train.py", None, "train"),
        ("finetune.py", "/home/ann/vit", "finetune"),
        ("train.py", "/" + "x" * 80, "x" * 57 + "-train"),
        ("train.py", "/home/ann/123", "123-train"),
    ],
)
def test_a_name_that_any_project_has_follows_that_of_the_project(
    script: str, directory: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert default_name(["python", script], directory) == name
    module = script.removeprefix("./").removesuffix(".py").replace("/", ".")
    if script.endswith(".py") and not script.startswith("../"):
        assert default_name(["python", "-m", module], directory) == name


HOSTILE = (
    *(
        "true",
        "no",
        "1.10",
        "1e3",
        "0x1F",
        "12",
        "12d",
        "1k",
        "-1",
        "-c",
        "--",
        "---",
        "...",
        ".inf",
        ".2",
        "-.5",
        "--.5",
        "./2",
        "..",
        "~",
    ),
    *(
        "",
        " a ",
        "a: b",
        "#x",
        "'",
        '"',
        "\n",
        "\t",
        "€\u2028",
        "{a}",
        "- x",
        "-x: y",
        "=",
        "*a",
        "&a",
        "!a",
    ),
)


@pytest.mark.parametrize("text", HOSTILE)
def test_every_text_is_read_back_as_it_was_written(text: str) -> None:
    written: dict[str, Value] = {"a": text, "b": [text, {"c": text}], text or "d": {"e": text}}
    tree, problems = yaml.compose(yaml_text(written).encode())
    assert tree is not None
    assert not problems
    assert yaml.to_plain(tree) == {"a": text, "b": (text, {"c": text}), text or "d": {"e": text}}


def test_a_command_line_becomes_a_job_file_with_only_what_was_given() -> None:
    line = CommandLine(
        ("python", "fit.py", "--lr", "3e-4"),
        code=".",
        gpus=1,
        cpus=8.0,
        memory="32G",
        time="2h",
        mounts=({"source": "corpus", "target": "/data/corpus"},),
        environment=(("A", "1.10"), ("B", "")),
        after=({"job": "prepare", "condition": "ok"},),
        priority_class="idle",
    )
    assert yaml_text(line.fields(), "a heading") == (
        "# a heading\n"
        "name: fit\n"
        "workload:\n"
        "  kind: program\n"
        '  command: [python, fit.py, --lr, "3e-4"]\n'
        "  code: .\n"
        "resources:\n"
        "  gpus: 1\n"
        "  cpus: 8\n"
        "  memory: 32G\n"
        "  time_limit: 2h\n"
        "mounts:\n"
        "  - {source: corpus, target: /data/corpus}\n"
        "environment:\n"
        '  A: "1.10"\n'
        '  B: ""\n'
        "queue:\n"
        "  priority_class: idle\n"
        "  after:\n"
        "    - {job: prepare, condition: ok}\n"
    )
    job = parse_job(yaml_text(line.fields()).encode(), Path("job.yaml"))
    assert (job.name, job.resources.cpus, job.resources.memory) == ("fit", 8.0, 32 * 1024**3)
    assert job.environment == {"A": "1.10", "B": ""}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("runner run:3:1: resources.memory: must be a size", "runner run: --memory: must be a size"),
        ("runner run:9:3: mounts[1].target: must be below /data", "runner run: --mount: must be below /data"),
        ("runner run:9:3: environment.PATH: is set by it", "runner run: --env: PATH: is set by it"),
        ("runner run: workload.command[3]: is too long", "runner run: COMMAND: is too long"),
        ("runner run: --class: there is none", "runner run: --class: there is none"),
        ("runner run: devices: describes GPUs", "runner run: devices: describes GPUs"),
        ('runner run:7:3: labels."ä": is no label', "runner run: --label: ä: is no label"),
        ("runner run:7:3: queue.priority_class: there is none", "runner run: --class: there is none"),
        ("runner run:7:3: queue.after[0].job: there is none", "runner run: --after: there is none"),
        ("runner run: queue.not_before: must be a time", "runner run: --not-before: must be a time"),
        (
            "runner run:7:3: checkpoint.resume_args: needs checkpoint.files, which says what",
            "runner run: --resume-args: needs --checkpoint, which says what",
        ),
        ("image.system (line 9): make: not on the list", "runner run: --system: make: not on the list"),
        ("resources.memory (line 4): asks for 9TiB", "runner run: --memory: asks for 9TiB"),
        ("runner run:7:3: Some words", "runner run: Some words"),
        ("job.yaml:3:1: resources.memory: must be a size", "job.yaml:3:1: resources.memory: must be a size"),
    ],
)
def test_a_problem_of_the_generated_file_is_told_as_one_of_the_option(line: str, told: str) -> None:
    assert of_option(line, "runner run") == told


def test_code_that_a_shell_has_made_absolute_is_sent_under_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = CommandLine(("a",), code=f"{tmp_path}/../vit", requirements=f"{tmp_path}/requirements.txt")
    assert relative(line) == CommandLine(("a",), code="../vit", requirements="requirements.txt")
    assert relative(CommandLine(("a",), code=".")) == CommandLine(("a",), code=".")
    assert relative(CommandLine(("a",))) == CommandLine(("a",))
