"""Requirements mean what pip says they mean, or are refused at their line; pip's own parser is asked."""

import itertools
from pathlib import Path

import pytest
from pip._internal.req.req_file import parse_requirements

from runner.base.errors import UsageError
from runner.base.textfile import FileError
from runner.files.required import RequirementReader

CORPUS = {
    "plain": b"numpy\ntorch>=2\n",
    "comment": b"# a\nnumpy # why\n  # b\ntorch\n",
    "a word with a sharp": b"torch#no-comment\n",
    "continued": b"numpy>=1,\\\n<3\ntorch\n",
    "a comment that ends in a backslash": b"# old: x \\\nnumpy\n",
    "a comment that ends in a backslash, indented": b"  # old \\\nnumpy\ntorch\n",
    "a comment within a continuation": b"numpy>=1,\\\n# why\n<3\n",
    "a comment behind a requirement that swallows the next": b"numpy # pinned \\\ntorch\n",
    "the same before nothing": b"numpy # pinned \\\n\n",
    "the same at the end": b"numpy # pinned \\",
    "a backslash at the end": b"numpy \\",
    "two backslashes": b"numpy>=1,\\\\\n<3\n",
    "continued over an empty line": b"numpy \\\n\ntorch\n",
    "blanks": b"\n\n   numpy   \n\t torch\t\n",
    "CRLF": b"numpy\r\ntorch\r\n",
    "CR": b"numpy\rtorch\r",
    "form feed": b"numpy\ftorch\n",
    "UTF-8 with a mark": b"\xef\xbb\xbfnumpy\ntorch\n",
    "UTF-16 of PowerShell": "numpy\r\ntorch>=2\r\n".encode("utf-16"),
    "UTF-16, big": b"\xfe\xff" + "numpy\ntorch\n".encode("utf-16-be"),
    "UTF-32": b"\xff\xfe\0\0" + "numpy\ntorch\n".encode("utf-32-le"),
    "a declared encoding": "# -*- coding: latin-1 -*-\nnumpy # sch\u00f6n\n".encode("latin-1"),
    "another encoding": "numpy # sch\u00f6n\n".encode("latin-1"),
    "UTF-16 without a mark": "numpy\n".encode("utf-16-le"),
    "markers": b"numpy ; python_version >= '3.9'\ntorch>=2; sys_platform == 'linux' # x\n",
    "hashes": b"numpy==1 --hash=sha256:" + b"a" * 64 + b"\\\n --hash=sha256:" + b"b" * 64 + b"\n",
    "extras": b"uvicorn[standard,x] >= 0.2\n",
    "included": b"-r more.txt\nnumpy\n",
    "included without a blank": b"-rmore.txt\nnumpy\n",
    "included with an equals sign": b"--requirement=more.txt\n",
    "included in quotes": b"-r 'more.txt'\n",
    "constraints": b"-c limits.txt\nnumpy\n",
    "options": b"--index-url https://example.org/simple\nnumpy\n",
    "an option alone": b"--pre\nnumpy\n",
    "an address": b"https://example.org/a-1-py3-none-any.whl\n",
    "a repository": b"git+https://example.org/a.git#egg=a\n",
    "a name with an address": b"a @ https://example.org/a-1.tar.gz\n",
    "a wheel": b"./a-1-py3-none-any.whl\n",
    "a variable": b"${NAME}\nnumpy\n",
    "no requirement": b"numpy 2\n",
    "an arbitrary version": b"numpy === 1.0-odd\n",
    "a URL as a fragment": b"a @ https://example.org/a.whl#sha256=1\n",
    "the local project": b"-e .\nnumpy\n",
    "the local project with an extra": b".[dev]\n",
    "a project below": b"libs/other\nnumpy\n",
    "a project of which nothing is known": b"./nothing\n",
    "a file that constrains and is required": b"-c more.txt\n-r more.txt\n",
    "requirements that a file of constraints includes": b"-c nested.txt\nnumpy\n",
    "a hash of another kind": b"numpy==1 --hash=sha512:" + b"a" * 128 + b"\n",
    "an option of a requirement": b"numpy --config-settings=x=y\n",
    "no index": b"--no-index\n--find-links wheels\nnumpy\n",
    "two includes in a line": b"-r more.txt -c limits.txt\n",
    "parentheses": b"numpy (>=1.26,<2)\n",
    "a path of Windows": b".\\libs\\other\n",
    "what conda freezes": b"numpy @ file:///croot/numpy_1668593735768/work\n",
    "the local project twice": b"-e .\nmine[docs]>=1\n",
}
FILES = {
    "more.txt": b"tqdm\n",
    "limits.txt": b"numpy<3\n",
    "nested.txt": b"-r more.txt\nnumpy<3\n",
    "pyproject.toml": (
        b'[project]\nname = "mine"\nversion = "1"\ndependencies = ["attrs"]\n'
        b'[project.optional-dependencies]\ndev = ["pytest", "mine[docs]"]\ndocs = ["sphinx"]\n'
    ),
    "libs/other/setup.py": b'from x import setup\nsetup(name="other", install_requires=["six>=1"])\n',
}
LOCAL = {
    "the local project": {"attrs"},
    "the local project with an extra": {"attrs", "pytest", "sphinx"},
    "a project below": {"six>=1"},
    "the local project twice": {"attrs", "sphinx"},
}
"""What pip finds out by building the project."""


def normal(text: str) -> str:
    return "".join(text.split())


def of_pip(place: Path) -> set[str]:
    """Return the requirements that pip takes of a file, without those that are local projects."""
    found = parse_requirements(str(place), session=None, options=None)  # type: ignore[arg-type]
    return {normal(each.requirement) for each in found if not each.constraint and not local(each.requirement)}


def local(text: str) -> bool:
    return text.startswith((".", "mine")) or "/" in text.partition("@")[0]


@pytest.mark.parametrize("name", CORPUS)
def test_a_line_is_what_pip_takes_it_for_or_is_refused(tmp_path: Path, name: str) -> None:
    for file, content in {**FILES, "requirements.txt": CORPUS[name]}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)

    def read(path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: is not there") from error

    try:
        collected = RequirementReader(read, tmp_path).read("requirements.txt")
    except FileError:
        return
    if collected.mistakes:
        assert all(each.placed.line.number for each in collected.mistakes)
        return
    taken = {normal(each.line.requirement) for each in collected.lines}
    assert taken == of_pip(tmp_path / "requirements.txt") | LOCAL.get(name, set())


REFUSED = {
    "a comment behind a requirement that swallows the next", "another encoding", "UTF-16 without a mark",
    "options", "an option alone", "an address", "a repository", "a name with an address", "a wheel",
    "a variable", "no requirement", "UTF-32", "a URL as a fragment", "a project of which nothing is known",
    "a comment within a continuation", "a word with a sharp", "a hash of another kind",
    "an option of a requirement", "no index", "two includes in a line", "a path of Windows",
    "what conda freezes",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(CORPUS) - REFUSED))
def test_what_pip_takes_is_taken(tmp_path: Path, name: str) -> None:
    """The comparison above would hold for a reader that refuses everything."""
    for file, content in {**FILES, "requirements.txt": CORPUS[name]}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    known = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def read(path: Path) -> bytes:
        if path not in known:
            raise UsageError(f"{path}: is not there")
        return known[path]

    assert RequirementReader(read, tmp_path).read("requirements.txt").mistakes == []


ENDS = ("", " ", "\\", " \\", " # x", " # x \\", "\\\\", "#x", "\t#\\")


def test_every_way_in_which_two_lines_end_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    for first, second in itertools.product(ENDS, repeat=2):
        text = f"numpy{first}\n# note{second}\ntorch{second}\ntqdm\n"
        (tmp_path / "requirements.txt").write_text(text)
        collected = RequirementReader(Path.read_bytes, tmp_path).read("requirements.txt")
        if not collected.mistakes:
            taken = {normal(each.line.requirement) for each in collected.lines}
            assert taken == of_pip(tmp_path / "requirements.txt"), text
