"""Input of the resolver, and the meaning of its answers."""

import zipfile
from pathlib import Path

import pytest

from images.errors import BuildFailed
from images.packages import resolve
from images.packages.answer import FoundFile, FoundPackage
from images.packages.family import own_family
from images.packages.resolve import IndexUnavailable, Unresolvable, platform
from images.packages.scratch import Scratch
from images.packages.values import Installed, PythonFacts, Requirements

HELD = (Installed("numpy", "2.4.6"), Installed("torch", "2.13.0+cpu", ("numpy", "sympy>=1.13")))
FACTS = PythonFacts("3.11", "x86_64", (2, 36), "/usr/bin/python3.11", (), HELD, patch=4)


@pytest.mark.parametrize(
    ("glibc", "found"),
    [((2, 36), "2_36"), ((2, 99), "2_40"), ((2, 30), "2_28"), ((2, 5), "2_17"), ((3, 1), "2_40")],
)
def test_the_platform_is_the_newest_that_the_c_library_has(glibc: tuple[int, int], found: str) -> None:
    facts = PythonFacts("3.11", "aarch64", glibc, "", (), ())
    assert platform(facts) == f"aarch64-manylinux_{found}"


def test_packages_of_the_image_are_offered_with_their_own_requirements(tmp_path: Path) -> None:
    resolve._write_inputs(Scratch(tmp_path, None), Requirements(("tqdm",), ("idna<4",)), FACTS)
    assert (tmp_path / "requirements.txt").read_text() == "tqdm\n"
    assert (tmp_path / "constraints.txt").read_text() == "idna<4\ntorch==2.13.0+cpu\n"
    assert 'version = "2.4.6+image"' in (tmp_path / "out" / "pylock.toml").read_text()
    with zipfile.ZipFile(tmp_path / "held" / "torch-2.13.0+cpu-py3-none-any.whl") as wheel:
        about = wheel.read("torch-2.13.0+cpu.dist-info/METADATA").decode()
    assert about.endswith("Requires-Dist: numpy\nRequires-Dist: sympy>=1.13\n")


def test_another_torch_takes_nothing_from_the_image(tmp_path: Path) -> None:
    resolve._write_inputs(
        Scratch(tmp_path, None), Requirements(("torch==2.4.0",), own_family=frozenset({"torch"})), FACTS
    )
    assert (tmp_path / "constraints.txt").read_text() == ""
    assert list((tmp_path / "held").iterdir()) == []


@pytest.mark.parametrize(
    ("line", "own"),
    [
        ("torch", False),
        ("torch>=2", False),
        ("torch==2.13.0", False),
        ("torch==2.4.0", True),
        ("Torch<2", True),
        ("torchvision==0.1", False),  # the image has none
        ("torch==2.2.2 ; sys_platform == 'darwin' and platform_machine == 'x86_64'", False),
        ("torch==2.4.0 ; python_version < '3.8'", False),
        ("torch==2.4.0 ; python_full_version >= '3.8.1'", True),
        ("torch==2.4.0 ; python_full_version < '3.11.3'", False),
        ("torch==2.4.0 ; sys_platform ~= 'x'", False),  # is told
        ("numpy<2", False),
        ("not a requirement at all !", False),
    ],
)
def test_another_torch_is_one_that_the_image_does_not_hold(line: str, own: bool) -> None:  # noqa: FBT001
    assert bool(own_family((line,), FACTS)) == own


def test_what_comes_from_the_image_needs_no_wheel() -> None:
    wheel = FoundFile("tqdm-4.0-py3-none-any.whl", "https://index/tqdm-4.0-py3-none-any.whl", "aa", 7)
    found = (
        FoundPackage("numpy", "2.4.6+image", FoundFile("x", "file:///x")),
        FoundPackage("torch", "2.13.0+cpu", FoundFile("y", "file:///y")),
        FoundPackage("tqdm", "4.0", wheel),
    )
    lock = resolve._read_lock(found, Requirements(("tqdm",)), FACTS)
    assert lock.base == {"numpy": "2.4.6", "torch": "2.13.0+cpu"}
    assert [(each.name, each.wheel.name, each.wheel.size) for each in lock.packages] == [
        ("tqdm", "tqdm-4.0-py3-none-any.whl", 7)
    ]


def test_a_package_without_a_hash_is_refused() -> None:
    found = (FoundPackage("tqdm", "4.0", FoundFile("t.whl", "https://index/t.whl")),)
    with pytest.raises(BuildFailed, match="tqdm: the index has no sha256 of its wheel"):
        resolve._read_lock(found, Requirements(("tqdm",)), FACTS)


NO_SOLUTION = "error: No solution found when resolving dependencies\n  cause: "
CONCLUDED = ", we can\n         conclude that your requirements are unsatisfiable.\n"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            f"Because nosuch was not found in the package registry and you require nosuch{CONCLUDED}",
            "nosuch was not found in the package registry and you require nosuch",
        ),
        (
            f"Because x==1 depends on torch>=3 and you require torch==2.13.0+cpu{CONCLUDED}",
            "x==1 depends on torch>=3 and the image has torch==2.13.0+cpu",
        ),
        (
            f"Because a==1 depends on numpy==2.4.6+image and you require numpy<2{CONCLUDED}\nhint: more\n",
            "a==1 depends on numpy==2.4.6 and you require numpy<2",
        ),
        (
            f"Because x==1 depends on torch<2 and torch==2.13.0+cpu{CONCLUDED}",
            "x==1 depends on torch<2 and the image has torch==2.13.0+cpu",
        ),
    ],
)
def test_the_reason_of_a_failure_is_one_line_in_words_of_the_user(output: str, reason: str) -> None:
    found = resolve._failure(1, NO_SOLUTION + output, FACTS)
    assert isinstance(found, Unresolvable)
    assert str(found) == reason
    assert found.details == (NO_SOLUTION + output).strip()


def test_a_failure_in_other_words_is_told_as_it_is() -> None:
    found = resolve._failure(2, "error: something else\n", FACTS)
    assert isinstance(found, Unresolvable)
    assert str(found) == "something else"


@pytest.mark.parametrize("how", ["Failed to build", "Failed to download and build"])
def test_a_package_that_has_to_be_built_is_known(how: str) -> None:
    text = f"error: {how} `a-b==1.0.post1`\n  cause: The build backend returned an error\n"
    found = resolve._failure(2, text, FACTS)
    assert isinstance(found, Unresolvable)
    assert (found.unbuilt, str(found)) == (("a-b", "1.0.post1"), "a-b 1.0.post1 has no wheel that fits")


def test_an_index_that_does_not_answer_is_no_fault_of_the_requirements() -> None:
    text = "error: Request failed after 3 retries\n  cause: Failed to fetch: http://127.0.0.1:9/simple/a/\n"
    assert isinstance(resolve._failure(2, text, FACTS), IndexUnavailable)
