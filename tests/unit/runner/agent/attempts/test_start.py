"""The line that works, of programs that did not start."""

from typing import Final

import pytest

from runner.agent.attempts.start import explain_start
from runner.core.job.exit_cause import Evidence, explain_exit

IN_CODE: Final = ("train.sh", "train.py", "scripts/go.sh", "t.sh")


@pytest.mark.parametrize(
    ("command", "log", "hint"),
    [
        (("python train.py",), "", "write it without quotes: python train.py"),
        (("FOO=a b", "python", "x.py"), "", "runner run --env 'FOO=a b' -- python x.py"),
        (("cd", "src"), "", "runner run -- bash -c 'cd src'"),
        (("sudo", "python", "x.py"), "", "write it without sudo: python x.py"),
        (("train.sh",), "runner: 1: exec: train.sh: not found", "./train.sh, or bash train.sh"),
        (("train.py", "--x"), "", "./train.py, or python train.py"),
        (("Train.py",), "", "Train.py is not in the code of the job; did you mean train.py?"),
        (("./train.sh",), "./train.sh: Permission denied", "chmod +x ./train.sh, or bash ./train.sh"),
        (("./train.sh",), "runner: 1: exec: ./train.sh: not found", "bash ./train.sh does without it"),
        (("./tran.sh",), "runner: 1: exec: ./tran.sh: not found", "did you mean train.sh?"),
        (("bash", "go.sh"), "bash: go.sh: No such file or directory", "go.sh is not in the code of the job"),
        (("sh", "tran.sh"), "sh: 0: cannot open tran.sh: No such file", "did you mean train.sh?"),
        (("./train.sh",), "/usr/bin/env: \u2018bash\\r\u2019: No such file", r"sed -i 's/\r$//' ./train.sh"),
        (
            ("./train.py",),
            "/usr/bin/env: \u2018py\\r\u2019: Permission denied",
            r"sed -i 's/\r$//' ./train.py",
        ),
        (("./train.py",), "/usr/bin/env: \u2018pythn\u2019: No such file", "names pythn, which is not there"),
        (
            ("./train.py",),
            "/usr/bin/env: \u2018pythn\u2019: Permission denied",
            "python ./train.py reads it, too",
        ),
        (("./t.sh",), "bash: ./t.sh: /bin/bsh: bad interpreter: No such file", "names /bin/bsh"),
        (("bash", "t.sh"), "t.sh: line 2: $'\\r': command not found", r"sed -i 's/\r$//' t.sh"),
        (("./t.sh",), "bash: ./t.sh: /bin/bash^M: bad interpreter: No such file", r"sed -i 's/\r$//' ./t.sh"),
        (
            ("make", "all"),
            "runner: 1: exec: make: not found",
            "make is not in the image; runner run --system make, or image.system: [make], installs it",
        ),
        (
            ("cd", "sub dir", "&&", "python", "x.py"),
            "runner: 1: exec: cd: not found",
            """runner run -- bash -c 'cd '"'"'sub dir'"'"' && python x.py'""",
        ),
        (("python3.9", "x.py"), "runner: 1: exec: python3.9: not found", 'image: {python: "3.9"} in the job'),
        (("bash", "t.sh"), "t.sh: line 3: gcc: command not found", "image.system: [build-essential]"),
        (("sh", "-c", "git x"), "sh: 1: git: not found", "image.system: [git]"),
        (("bash", "-c", "./t.sh"), "bash: line 1: ./t.sh: Permission denied", "chmod +x ./t.sh"),
        (
            ("x",),
            "[FATAL tini (7)] exec /bin/sh failed: No such file or directory",
            "the image has no /bin/sh",
        ),
        (("x",), "[FATAL tini (7)] exec /bin/sh failed: Exec format error", "is of another architecture"),
        (
            ("./train",),
            "./train: error while loading shared libraries: libnccl.so.2: cannot open shared object file",
            "./train is there; its library libnccl.so.2 is not in the image",
        ),
        (("bash", "t.sh"), "some words", ""),
        (("/opt/bin/x",), "", ""),
        ((), "", ""),
    ],
)
def test_a_program_that_cannot_start_is_told_with_the_line_that_works(
    command: tuple[str, ...], log: str, hint: str
) -> None:
    found = explain_start(command, log.encode(), lambda: IN_CODE, in_container=True)
    assert hint in found if hint else found == ""
    evidence = Evidence(
        127, oom_seen=False, engine_error="", result_cause=None, result_message="", writes_result=False,
        hint_of_start=found,
    )  # fmt: skip
    assert found in explain_exit(evidence)[1]


def test_a_choice_of_pythons_that_lacks_one_is_no_first_line_of_a_script() -> None:
    log = b"pyenv: python3.9: command not found\n\nThe `python3.9' command exists in these Python versions:\n"
    said = explain_start(("python3.9", "t.py"), log, lambda: IN_CODE, in_container=False)
    assert said == "python3.9 is not on the PATH of this machine for the user of the job"


def test_a_plain_process_is_not_told_of_an_image() -> None:
    log = b"t.sh: line 3: make: Permission denied"
    said = explain_start(("bash", "t.sh"), log, lambda: (), in_container=False)
    assert said == (
        "make is not on the PATH of this machine for the user of the job;"
        " a make on the PATH is out of this user's reach, as all below /root is"
    )


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("tensorboard", "runner run --with tensorboard, or image.requirements, installs it"),
        ("hf", "runner run --with huggingface_hub, "),
        ("Rscript", "runner run --system r-base-core, or image.system: [r-base-core], installs it"),
        ("conda", "write the command without it"),
        ("uv", "write the command without it"),
        ("srun", "write the program itself"),
        ("module", "the image has what it loads"),
        ("nvidia-smi", "if it asks for a GPU"),
        ("mytool", "its package is one of Python (--with) or of Debian (--system)"),
    ],
)
def test_a_command_that_is_missing_has_the_advice_that_works_for_it(tool: str, told: str) -> None:
    log = f"runner: 1: exec: {tool}: not found\n".encode()
    said = explain_start((tool, "x"), log, lambda: IN_CODE, in_container=True)
    assert said.startswith(f"{tool} is not in the image; ")
    assert told in said


def test_sudo_within_a_line_is_told_without_a_package_of_it() -> None:
    log = b"bash: line 1: sudo: command not found\n"
    said = explain_start(("bash", "-c", "sudo apt-get install x"), log, lambda: IN_CODE, in_container=True)
    assert said.startswith("sudo is not in the image; jobs have no rights of root; runner run --system")
