"""Shell syntax in the command of a program that runs without a shell."""

import pytest

from runner.files import shell


@pytest.mark.parametrize(
    "text", ["a | b", "a > b", "a < b", "a && b", "a; b", "echo $HOME", "echo `date`", "ls *.py"]
)
def test_a_text_for_a_shell_becomes_a_list_that_starts_one(text: str) -> None:
    assert shell.suggest_list(text, command=True) == f'["bash", "-o", "pipefail", "-c", "{text}"]'


def test_a_text_without_anything_for_a_shell_becomes_its_words() -> None:
    assert shell.suggest_list("python train.py", command=True) == '["python", "train.py"]'
    assert shell.suggest_list("*.py", command=False) == '["*.py"]'


@pytest.mark.parametrize("mark", ["|", ">", ">>", "<", "&&", "||", ";"])
def test_what_would_be_an_argument_and_not_a_pipe_is_warned_about(mark: str) -> None:
    (warning,) = shell.find_shell_warnings(("python", "train.py", mark, "log"))
    assert warning == (
        f"workload.command[2]: '{mark}' is passed to the program as it is; "
        'for a shell write ["bash", "-o", "pipefail", "-c", "python train.py ..."]'
    )


def test_a_shell_that_was_asked_for_draws_no_warning() -> None:
    assert list(shell.find_shell_warnings(("sh", "-c", "python train.py > log"))) == []


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", "python train.py | tee log"),
        ("/bin/bash", "-ec", "python train.py 2>&1|tee log"),
        ("env", "A=1", "bash", "-c", "true && python x.py |& tee log"),
    ],
)
def test_a_pipe_that_hides_a_failure_is_told(command: tuple[str, ...]) -> None:
    (warning,) = shell.find_shell_warnings(command)
    assert "a failure before a '|' counts as a success" in warning
    assert 'write ["bash", "-o", "pipefail", "-c", "' in warning


@pytest.mark.parametrize(
    "command",
    [
        ("bash", "-c", "python train.py; echo done"),
        ("bash", "-o", "pipefail", "-c", "cd src && python a.py\npython b.py"),
        ("sh", "-c", "for s in 1 2; do python x.py --seed $s; done"),
    ],
)
def test_a_text_for_a_shell_that_goes_on_after_a_failure_is_told(command: tuple[str, ...]) -> None:
    (warning,) = shell.find_shell_warnings(command)
    assert "a failure here is lost, as the script goes on" in warning
    assert 'write ["bash", "-e", "-c", "' in warning


@pytest.mark.parametrize(
    "command",
    [
        ("bash", "-ec", "python train.py; echo done"),
        ("bash", "-c", "set -e; python train.py; echo done"),
        ("bash", "-c", "cd src; python train.py"),
        ("bash", "-c", "if true; then python a.py; else python b.py; fi"),
        ("bash", "-o", "pipefail", "-c", "python train.py | tee log"),
        ("bash", "-c", "set -o pipefail; python train.py | tee log"),
        ("sh", "-c", "python a.py || python b.py"),
        ("sh", "-c", "python train.py --sep '|' \\| x"),
        ("python", "-c", "print(1 | 2)"),
        ("bash", "train.sh"),
    ],
)
def test_a_pipe_that_hides_none_is_not(command: tuple[str, ...]) -> None:
    assert list(shell.find_shell_warnings(command)) == []


@pytest.mark.parametrize(
    ("command", "written"),
    [
        (("bash", "-c", "python t.py"), '["bash", "-c", "python t.py \\"$@\\"", "run"]'),
        (("sh", "-ec", 'exec python t.py "$@"'), '["sh", "-ec", "exec python t.py \\"$@\\"", "run"]'),
        (("env", "A=1", "bash", "-c", "x"), '["env", "A=1", "bash", "-c", "x \\"$@\\"", "run"]'),
    ],
)
def test_words_that_a_shell_drops_are_told_with_the_line_that_works(
    command: tuple[str, ...], written: str
) -> None:
    assert (
        shell.find_dropped_arguments(command) == f"the shell drops the words behind its text; write {written}"
    )


@pytest.mark.parametrize(
    "command",
    [
        ("python", "t.py"),
        ("bash", "train.sh"),
        ("bash", "-c", 'python t.py "$@"', "run"),
        ("bash", "-c", "python t.py $1 ${2}", "run", "--fast"),
        ("bash", "-o", "pipefail", "-c", 'python t.py "$@" | tee log', "run"),
    ],
)
def test_words_that_reach_a_program_are_not(command: tuple[str, ...]) -> None:
    assert shell.find_dropped_arguments(command) is None


# --- scripts in the code of a job


@pytest.mark.parametrize(
    ("command", "scripts"),
    [
        (("bash", "pipe.sh"), ["pipe.sh"]),
        (("sh", "-e", "go"), ["go"]),
        (("./scripts/pipe.sh", "--lr", "1"), ["./scripts/pipe.sh"]),
        (("timeout", "1h", "/bin/bash", "a.sh"), ["a.sh"]),
        (("bash", "-c", "python x.py"), []),
        (("python", "train.py"), []),
        (("./train.py", "--lr", "1"), ["./train.py"]),
    ],
)
def test_the_scripts_of_a_command_are_found(command: tuple[str, ...], scripts: list[str]) -> None:
    assert list(shell.find_scripts(command)) == scripts


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("python x.py | tee log\n", [1]),
        ("#!/bin/bash\n# a | b\npython x.py \\\n  --lr 1 2>&1 | tee log\n", [3]),
        ("set -euo pipefail\npython x.py | tee log\n", []),
        ("set -e\nset -o pipefail\npython x.py | tee log\necho done\n", []),
        ("HOST=$(hostname | cut -d. -f1)\nexec python x.py\n", []),
        ("if ls | grep -q x; then python x.py; fi\n", []),
        ("case $1 in\n a|b) python x.py;;\nesac\n", []),
        ("echo 'a | b'\ncat <<EOF\n a | b\nEOF\npython x.py || true\n", []),
        ("python a.py || exit 1\npython b.py\n", []),
        ("cd src\nexport A=1\npython x.py\n", []),
        ("python x.py\necho done\n", [1]),
        ("CUDA_VISIBLE_DEVICES=0 python3.11 a.py\npython b.py\n", [1]),
        ("for seed in 1 2; do\n  torchrun x.py\ndone\n", [2]),
        ("if true; then\n  python x.py\nfi\n", []),
        ("set -e\npython a.py\npython b.py\n", []),
        ("#!/bin/bash -eu\npython a.py\npython b.py\n", []),
        ("python x.py | tee log\nscp log host:\n", [1, 1]),
        ("if true; then\n  python a.py\nelse\n  python b.py\nfi\n", []),
        ("cd src && python x.py\necho done\n", [1]),
        ("", []),
    ],
)
def test_a_script_that_loses_a_failure_is_warned_about(text: str, lines: list[int]) -> None:
    assert [number for number, _ in shell.find_script_warnings("go.sh", text)] == lines


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("go.sh", "#!/bin/bash\r\npython x.py\r\n", "sed -i 's/\\r$//' go.sh"),
        ("./x.py", "#!/usr/bin/env python\r\nprint(1)\r\n", "sed -i 's/\\r$//' ./x.py"),
        ("./x.py", "import sys\na = 1 | 2\n", "write: python ./x.py"),
        ("go.sh", "\ufeff#!/bin/bash\npython x.py\n", r"sed -i '1s/^\xEF\xBB\xBF//' go.sh"),
    ],
)
def test_a_script_that_cannot_start_is_warned_about(path: str, text: str, said: str) -> None:
    [(line, fact)] = shell.find_script_warnings(path, text)
    assert line == 1
    assert said in fact


def test_a_script_of_another_interpreter_is_not_read_as_a_shell_reads_it() -> None:
    assert not list(shell.find_script_warnings("./x.py", "#!/usr/bin/env python3\na = 1 | 2\n"))
