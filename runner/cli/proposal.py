"""Proposal of ``runner init`` for a directory with a script: a job file with reasons as comments.

The scripts are parsed and never run.
"""

from __future__ import annotations

import ast
import os
import shlex
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from runner.base.errors import UsageError
from runner.base.textfile import one_line
from runner.cli.run_file import Value, default_name, find_package_file, yaml_text
from runner.files.shell import interpreter_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SCRIPTS: Final = ("train.py", "main.py", "run.py", "finetune.py", "train_gpt.py")
"""Usual names of the script that trains, the likeliest first."""

SHELL_SCRIPTS: Final = ("train.sh", "run.sh", "main.sh")
"""The same of shell scripts, where there is no other."""

OTHERS: Final = (".R", ".jl")
"""Endings of scripts that are neither Python's nor a shell's."""

FOR_NOTEBOOKS: Final = ("nbconvert", "ipykernel")
"""Packages of what executes notebooks."""

NO_SCRIPT: Final = ("test_", "conftest", "setup", "_")
"""Beginnings of the names of files that train nothing."""

LEFT_OUT: Final = frozenset(
    {"venv", "env", "node_modules", "site-packages", "build", "dist", "test", "tests", "docs", "notebooks"}
)
"""Directories in which no script is looked for; nor is it in hidden ones."""

DEEPEST: Final = 3
MAX_LOOKED_AT: Final = 2000
MAX_NAMED: Final = 4
"""Scripts of which a message says that it might be any."""

MAX_SOURCE_BYTES: Final = 1024**2
MAX_SOURCES: Final = 50

RESUME_OPTIONS: Final = (
    *(
        "--resume_from_checkpoint",
        "--resume-from-checkpoint",
        "--resume_from",
        "--resume-from",
        "--ckpt_path",
    ),
    *("--ckpt-path", "--resume", "--checkpoint", "--load", "--init_from"),
)
"""Usual options of scripts for the checkpoint to resume from, the likeliest first."""

LIGHTNING: Final = "Lightning"
HUGGING_FACE: Final = "Hugging Face Trainer"
TORCH: Final = "PyTorch"

HINTS: Final = {
    LIGHTNING: (
        "Lightning: to resume exactly, write in the script",
        "  from gpu_job_runner.integrations.lightning import Attached",
        "  Attached().fit(trainer, model, train_loader)    # instead of trainer.fit(model, train_loader)",
    ),
    HUGGING_FACE: (
        "Hugging Face: to resume exactly, write in the script",
        "  from gpu_job_runner.integrations.huggingface import Attached",
        '  Attached().train(trainer)    # instead of trainer.train(); with save_strategy="no"',
    ),
    TORCH: (
        "PyTorch: to resume exactly, write in the script",
        "  from gpu_job_runner.attach import attach_states",
        "  with attach_states(model=model, optimizer=optimizer) as job:",
        "      for step in job.steps(1000):    # instead of range(1000)",
    ),
}
"""Advice on each framework: how it is made resumable."""


@dataclass(slots=True)
class Findings:
    """Facts that the sources of a directory tell."""

    modules: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    options: set[str] = field(default_factory=set)
    saved: list[str] = field(default_factory=list)  # paths that are written by torch.save
    output_dirs: list[str] = field(default_factory=list)

    @property
    def framework(self) -> str | None:
        """The framework that runs the loop."""
        if self.modules & {"lightning", "pytorch_lightning"}:
            return LIGHTNING
        if "transformers" in self.modules and self.names & {"Trainer", "Seq2SeqTrainer", "SFTTrainer"}:
            return HUGGING_FACE
        return TORCH if "torch" in self.modules else None

    @property
    def is_distributed(self) -> bool:
        return bool(self.names & {"init_process_group", "DistributedDataParallel", "fully_shard"})


@dataclass(frozen=True, slots=True)
class Proposal:
    """A job file, and what it is made for."""

    text: str
    about: str


def propose(directory: Path) -> Proposal | None:
    """Return a job file for the script of a directory, None if there is no script below it.

    Raises:
        UsageError: it may be any of several.
    """
    script = _find_script(directory)
    if script is None:
        return None
    found = Findings()
    beside = sorted((directory / script).parent.glob("*.py"))
    for source in (directory / script, *[*beside, *sorted(directory.glob("*.py"))][:MAX_SOURCES]):
        _read(source, found)
    requirements = find_package_file(str(directory), [script])
    packages: Value | None = requirements
    if script.endswith(".ipynb"):
        packages = [*([f"-r {requirements}"] if requirements else []), *FOR_NOTEBOOKS]
    command = _command(script, found)
    fields: dict[str, Value] = {
        "name": default_name(command, str(directory)),
        "workload": {"kind": "program", "command": command, "code": "."},
        "resources": {"gpus": 0, "cpus": 2, "memory": "8GiB"},
        **({"image": {"requirements": packages}} if packages else {}),
    }
    text = yaml_text(fields, _heading(found)) + "\n" + "\n".join(_checkpoint_lines(found)) + "\n"
    parts = [script, *([f"with {requirements}"] if requirements else ())]
    return Proposal(text, " ".join(parts) + (f" ({found.framework})" if found.framework else ""))


def _find_script(directory: Path) -> str | None:
    """Return the script that trains: one with a usual name, the nearest first, or the only one.

    Raises:
        UsageError: it may be any of several.
    """
    scripts = list(islice(_scripts(directory, ()), MAX_LOOKED_AT))
    for usual in (SCRIPTS, SHELL_SCRIPTS):
        named = [each for each in scripts if each.name in usual]
        if named:
            nearest = min(len(each.parts) for each in named)
            near = [each for each in named if len(each.parts) == nearest]
            return _only(sorted(near, key=lambda each: usual.index(each.name)), same_place=True)
    python = [each for each in scripts if each.suffix == ".py"]
    here = [each for each in python if len(each.parts) == 1]
    started = [each for each in python if len(each.parts) > 1 and _is_started(directory / each)]
    shell = [each for each in scripts if each.suffix == ".sh"]
    notebooks = [each for each in scripts if each.suffix == ".ipynb"]
    others = [each for each in scripts if each.suffix in OTHERS]
    return _only(sorted(here or started or shell or _packages(directory) or others or notebooks))


def _packages(directory: Path) -> list[PurePosixPath]:
    """Return the modules of the packages of a directory that ``python -m`` starts."""
    found = (*directory.glob("*/__main__.py"), *directory.glob("src/*/__main__.py"))
    return [PurePosixPath(each.relative_to(directory)) for each in found]


def _command(script: str, found: Findings) -> list[str]:
    """Return the command that starts a script, a package or a notebook."""
    if script.endswith("__main__.py"):
        return ["python", "-m", PurePosixPath(script).parent.name]
    if script.endswith(".ipynb"):
        return ["jupyter", "nbconvert", "--to", "notebook", "--execute", script, "--output", "done.ipynb"]
    return [*(_launcher(found) if script.endswith(".py") else [interpreter_of(script)]), script]


def _scripts(directory: Path, below: tuple[str, ...]) -> Iterator[PurePosixPath]:
    """Yield the scripts of a directory and of those below it, as they are named from the first one."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if (
            entry.name.endswith((".py", ".sh", ".ipynb", *OTHERS))
            and not entry.name.startswith(NO_SCRIPT)
            and entry.is_file()
        ):
            yield PurePosixPath(*below, entry.name)
    for entry in entries:
        hidden = entry.name.startswith((".", "_")) or entry.name in LEFT_OUT
        if len(below) < DEEPEST and not hidden and entry.is_dir(follow_symlinks=False):
            yield from _scripts(directory / entry.name, (*below, entry.name))


def _only(found: Sequence[PurePosixPath], *, same_place: bool = False) -> str | None:
    """Return the only script; with ``same_place`` the first of those in its directory.

    Raises:
        UsageError: there are others.
    """
    if not found:
        return None
    if len(found) == 1 or (same_place and all(each.parent == found[0].parent for each in found)):
        return str(found[0])
    named = ", ".join(one_line(str(each)) for each in found[:MAX_NAMED])
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    example = shlex.join(["runner", "run", "--save", "job.yaml", "python", str(found[0])])
    hint = f"name it with the command, such as: {example}; runner init --training writes a sample"
    raise UsageError(f"the script may be any of {named}{more}; {hint}")


def _is_started(path: Path) -> bool:
    """Return True if a source has what runs when it is started as a script."""
    try:
        return path.stat().st_size <= MAX_SOURCE_BYTES and "__main__" in path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _launcher(found: Findings) -> list[str]:
    if found.is_distributed:
        return ["torchrun", "--standalone", "--nproc-per-node", "1"]
    return ["python"]


def _heading(found: Findings) -> str:
    lines = [
        'Check it with "runner validate FILE", start it with "runner submit FILE --follow".',
        '"runner schema" prints all fields with their meanings and defaults.',
    ]
    if {"cuda", "is_available"} & found.names:
        lines.append("The script mentions CUDA: write gpus: 1 to get a GPU.")
    if found.is_distributed:
        lines.append("It trains with several processes: write as many GPUs as --nproc-per-node.")
    return "\n".join(lines)


def _checkpoint_lines(found: Findings) -> Iterator[str]:
    """Yield the section about checkpoints; as comments where something has to be filled in."""
    files = _checkpoint_pattern(found)
    option = next((each for each in RESUME_OPTIONS if each in found.options), None)
    if files is not None and option is not None:
        yield "checkpoint:               # the script saves these, and resumes by this option"
        yield f'  files: "{files}"'
        yield f'  resume_args: ["{option}", "{{newest}}"]'
        return
    yield "# A command that dies is started again in the same copy of this directory. If the script saves"
    yield "# on its own, say what, and by which option it resumes:"
    yield "# checkpoint:"
    yield f'#   files: "{files or "out/checkpoint-*"}"'
    yield f'#   resume_args: ["{option or "--resume"}", "{{newest}}"]'
    if found.framework is not None and found.modules.isdisjoint(("gpu_job_runner", "jobs")):
        yield "#"
        yield from (f"# {line}" for line in HINTS[found.framework])


def _checkpoint_pattern(found: Findings) -> str | None:
    if found.framework == HUGGING_FACE and found.output_dirs:
        return f"{found.output_dirs[0]}/checkpoint-*"
    return next(iter(found.saved), None)


def _read(path: Path, found: Findings) -> None:
    """Add what a source tells; nothing if it cannot be parsed."""
    try:
        if path.stat().st_size > MAX_SOURCE_BYTES:
            return
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        _note(node, found)


def _note(node: ast.AST, found: Findings) -> None:
    match node:
        case ast.Import(names=names):
            found.modules.update(each.name.partition(".")[0] for each in names)
        case ast.ImportFrom(module=str(module), names=names):
            found.modules.add(module.partition(".")[0])
            found.names.update(each.name for each in names)
        case ast.Attribute(attr=name):
            found.names.add(name)
        case ast.Constant(value="cuda"):
            found.names.add("cuda")
        case ast.Call():
            _note_call(node, found)
        case _:
            pass


def _note_call(call: ast.Call, found: Findings) -> None:
    """Add the options of a parser, the paths of ``torch.save`` and the directories of a ``Trainer``."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    texts = [
        each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    if name == "add_argument":
        found.options.update(text for text in texts if text.startswith("--"))
    elif name == "save" and isinstance(call.func, ast.Attribute) and len(call.args) > 1:
        value = getattr(call.func.value, "id", "")
        found.saved += [text for text in texts[-1:] if value == "torch" and _is_pattern(text)]
    for keyword in call.keywords:
        value = keyword.value
        if keyword.arg == "output_dir" and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found.output_dirs += [value.value.rstrip("/")] if _is_pattern(value.value) else []


def _is_pattern(path: str) -> bool:
    """Return True if a path can be written into ``checkpoint.files`` as it is."""
    parts = path.removeprefix("./").rstrip("/").split("/")
    usual = all(part not in {"", ".", ".."} for part in parts)
    return usual and not set(path) & set('"\\$~*?[]{}') and path.isprintable() and len(path) < 200
