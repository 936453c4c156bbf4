"""Projects of a user's own: what their files say, and what is refused because only a build knows it."""

from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.base.textfile import FileError
from runner.files.own_project import OwnProject, describe_own
from runner.files.package_lock import locked_hashes, locked_torch
from runner.files.required import Collected, RequirementReader
from runner.files.requirements import admits_python

CODE = Path("/home/ada/code")
NAMED = '[project]\nname = "mine"\nversion = "1.2"\n'


def collected(files: dict[str, str], asked: str | tuple[str, ...] = ("-e .",)) -> Collected:
    known = {CODE / name: text.encode() for name, text in files.items()}

    def read(path: Path) -> bytes:
        if path not in known:
            raise UsageError(f"{path}: is not there")
        return known[path]

    return RequirementReader(read, CODE).read(asked)


def lines(found: Collected) -> list[str]:
    assert found.mistakes == []
    return [each.line.text for each in found.lines]


def mistake(files: dict[str, str], *asked: str) -> str:
    [found] = collected(files, asked or ("-e .",)).mistakes
    return found.fact


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"pyproject.toml": NAMED + 'dependencies = ["attrs", "idna>=3"]'}, ["attrs", "idna>=3"]),
        (
            {
                "pyproject.toml": "tool.setuptools.dynamic.dependencies.file = ['r.txt']\n"
                + NAMED
                + 'dynamic = ["dependencies"]\n',
                "r.txt": "attrs # x\n\nidna\n",
            },
            ["attrs", "idna"],
        ),
        (
            {"setup.cfg": "[metadata]\nname=mine\n[options]\ninstall_requires =\n  attrs\n  idna>=3\n"},
            ["attrs", "idna>=3"],
        ),
        (
            {
                "setup.cfg": "[metadata]\nname=mine\n[options]\ninstall_requires = file: r.txt\n",
                "r.txt": "attrs",
            },
            ["attrs"],
        ),
        (
            {"setup.py": "needs = ['attrs']\nsetup(name='mine', install_requires=needs)"},
            ["attrs"],
        ),
        ({"setup.py": "import setuptools\nsetuptools.setup(name='mine')"}, []),
        ({"setup.py": "setup(name='mine', install_requires=('attrs', 'idna'))"}, ["attrs", "idna"]),
        ({"setup.py": 'setup(name=\'mine\', install_requires="""attrs\n# x\nidna""")'}, ["attrs", "idna"]),
        ({"setup.cfg": "[metadata]\nname=mine\n[options]\ninstall-requires = attrs\n"}, ["attrs"]),
        (
            {
                "pyproject.toml": "[build-system]\n",
                "setup.py": "setup(name='mine', install_requires='attrs')",
            },
            ["attrs"],
        ),
        (
            {
                "pyproject.toml": NAMED
                + 'dependencies = ["other"]\n[tool.uv.sources]\nother = {path = "libs/other"}\n',
                "libs/other/pyproject.toml": '[project]\nname = "other"\ndependencies = ["idna"]\n',
            },
            ["idna"],
        ),
        (
            {
                "pyproject.toml": NAMED
                + 'dependencies = ["lib-a", "lib-b"]\n[tool.uv.workspace]\nmembers = ["packages/*"]\n'
                + "[tool.uv.sources]\nlib-a = {workspace = true}\nlib-b = {workspace = true}\n",
                "packages/lib_a/pyproject.toml": '[project]\nname = "lib-a"\ndependencies = ["lib-b"]\n'
                "[tool.uv.sources]\nlib-b.workspace = true\n",
                "packages/lib-b/setup.py": "setup(name='lib-b', install_requires=['idna'])\n",
            },
            ["idna"],
        ),
        (
            {
                "pyproject.toml": NAMED
                + "dependencies = [\"w ; sys_platform == 'win32'\", \"v ; python_version > '3'\"]\n"
                + '[tool.uv.sources]\nw.path = "w"\nv.path = "v"\n',
                "w/setup.py": "setup(name='w', install_requires=['pywin32'])",
                "v/setup.py": "setup(name='v', install_requires=['idna'])",
            },
            ["idna"],
        ),
        (
            {
                "setup.py": "NAME = 'mine'\nNEEDS = ['attrs']\nabout = {}\nexec(open(NAME).read(), about)\n"
                "setup(name=NAME, version=about['v'], install_requires=NEEDS)"
            },
            ["attrs"],
        ),
        (
            {
                "pyproject.toml": NAMED
                + 'dependencies = ["torch"]\n[tool.uv.sources]\ntorch = {index = "cu"}\n'
            },
            ["torch"],
        ),
    ],
)
def test_what_a_project_needs_is_read_and_never_run(files: dict[str, str], wanted: list[str]) -> None:
    found = collected(files)
    assert lines(found) == wanted
    assert [each.name for each in found.own][:1] == ["mine"]


def test_a_requirement_of_a_project_has_the_place_of_its_line() -> None:
    [found] = collected({"pyproject.toml": NAMED + 'dependencies = [\n  "attrs",\n]\n'}).lines
    assert (found.path, found.line.number) == (Path("pyproject.toml"), 5)


@pytest.mark.parametrize(
    ("files", "fact"),
    [
        ({}, ".: has no pyproject.toml, setup.cfg or setup.py"),
        (
            {"pyproject.toml": NAMED + 'dynamic = ["dependencies"]'},
            "dependencies are known only to its build",
        ),
        (
            {
                "pyproject.toml": NAMED
                + 'dynamic = ["dependencies"]\n[tool.setuptools.dynamic]\ndependencies = {file = "r"}'
            },
            "r: cannot be read, and pyproject.toml takes its dependencies from it",
        ),
        ({"pyproject.toml": '[tool.poetry.dependencies]\npython = "^3.11"'}, "in the words of Poetry"),
        ({"pyproject.toml": NAMED + '[build-system]\nbuild-backend = "maturin"'}, "has to be compiled"),
        ({"setup.py": "setup(name='x', ext_modules=[1])"}, "setup.py has extension modules"),
        (
            {"setup.py": "setup(name='x', install_requires=open('r').read())"},
            "setup.py: its dependencies, commands or directories are computed",
        ),
        (
            {"setup.py": "needs = ['a']\nneeds.append('b')\nsetup(name='x', install_requires=needs)"},
            "computed",
        ),
        ({"setup.py": "needs = ['a']\nneeds += ['b']\nsetup(name='x', install_requires=needs)"}, "computed"),
        ({"setup.py": "setup(name='x', package_dir={'x': 'lib'})"}, "package_dir gives x another name than"),
        ({"setup.py": "setup(name='x', entry_points='a = b:c')"}, "a = b:c: is in no [group]"),
        ({"setup.py": "setup(name='x', cffi_modules=['b.py:ffi'])"}, "has to be compiled"),
        (
            {"setup.py": "setup(name='x', extras_require={':python_version<\"4\"': ['a']})"},
            "write the marker",
        ),
        (
            {"setup.cfg": "[metadata]\nname = x\n[options]\nentry_points = file: e.ini\n"},
            "setup.cfg: entry_p",
        ),
        ({"setup.cfg": "[metadata]\nname = x\n[options]\npackage_dir =\n  x = lib\n"}, "package_dir gives x"),
        (
            {"pyproject.toml": NAMED + '[tool.poetry.dependencies]\npython = ">=3.11"\nattrs = "^1"'},
            "in the words of Poetry",
        ),
        (
            {"pyproject.toml": NAMED + '[tool.uv]\noverride-dependencies = ["attrs==1"]'},
            "tool.uv.override-dependencies",
        ),
        (
            {"pyproject.toml": NAMED + '[tool.hatch.build.targets.wheel.sources]\nlib = "mine"'},
            "sources of hatch gives mine another name",
        ),
        ({"pyproject.toml": '[dependency-groups]\ntrain = ["attrs"]'}, "uv pip compile --group NAME"),
        ({"setup.py": "setup(pbr=True)"}, "its dependencies are known only to pbr; list them"),
        ({"setup.py": "setup(name='a', setup_requires=['setupmeta>=2'])"}, "known only to setupmeta; list"),
        ({"setup.py": "setup(**about)"}, "setup.py: its arguments are computed"),
        ({"setup.py": "setup("}, "setup.py: "),
        ({"pyproject.toml": "[project"}, "pyproject.toml: "),
        ({"pyproject.toml": NAMED + 'dependencies = "attrs"'}, "project.dependencies is not a list of texts"),
        ({"pyproject.toml": NAMED + 'requires-python = "three"'}, "requires-python: three: is not a range"),
        ({"pyproject.toml": NAMED + '[project.scripts]\na = "x y"'}, "a = x y: is not module:function"),
        ({"pyproject.toml": NAMED + '[project.scripts]\n"../a" = "x:y"'}, "../a: is not a name of a command"),
        (
            {"pyproject.toml": NAMED + 'dependencies = ["a"]\n[tool.uv.sources]\na = {git = "https://x"}'},
            "tool.uv.sources has a place for it",
        ),
        (
            {"pyproject.toml": NAMED + 'dependencies = ["a"]\n[tool.uv.sources]\na = {workspace = true}'},
            "tool.uv.sources has a place for it",
        ),
        (
            {"pyproject.toml": NAMED + '[tool.setuptools.package-dir]\nmine = "lib"'},
            "package-dir gives mine another name",
        ),
        ({"pyproject.toml": '[project]\nname = "a/b"'}, "a/b: is not a name of a project"),
    ],
)
def test_what_only_a_build_knows_is_refused(files: dict[str, str], fact: str) -> None:
    assert fact in mistake(files)


def test_a_directory_is_looked_for_where_pip_is_started_and_beside_the_file() -> None:
    files = {
        "pyproject.toml": NAMED,
        "lists/dev.txt": "-e .\n",
        "a/b.txt": "./c\n",
        "a/c/setup.py": "setup(name='c')",
    }
    assert [each.name for each in collected(files, "lists/dev.txt").own] == ["mine"]
    assert [each.name for each in collected(files, "a/b.txt").own] == ["c"]


def test_extras_of_the_project_are_taken_and_unknown_ones_refused() -> None:
    text = NAMED + '[project.optional-dependencies]\ndev = ["pytest", "mine[docs]"]\ndocs = ["sphinx"]\n'
    assert lines(collected({"pyproject.toml": text}, (".[dev]",))) == ["pytest", "sphinx"]
    assert mistake({"pyproject.toml": text}, "-e .[test]") == ".: has no extra test; there are: dev, docs"


def test_a_name_of_an_extra_is_compared_as_any_name() -> None:
    text = NAMED + "[project.optional-dependencies]\nDev_Tools = ['pytest']\nall = ['Mine[dev.tools]']\n"
    assert lines(collected({"pyproject.toml": text}, (".[ALL]",))) == ["pytest"]
    other = text.replace("'Mine[dev.tools]'", "\"mine[dev-tools] ; sys_platform == 'win32'\"")
    assert lines(collected({"pyproject.toml": other}, (".[all]",))) == []


def test_a_project_of_the_code_is_never_taken_from_an_index() -> None:
    files = {
        "requirements.txt": "-e libs/b\n-e libs/a\n",
        "libs/a/pyproject.toml": '[project]\nname = "lab-a"\nversion = "1.5"\ndependencies = ["attrs"]\n'
        '[project.optional-dependencies]\ntrain = ["idna"]\n',
        "libs/b/pyproject.toml": '[project]\nname = "lab.b"\ndependencies = ["Lab_A[train]>=1"]\n',
    }
    assert lines(collected(files, "requirements.txt")) == ["attrs", "idna"]
    files["libs/b/pyproject.toml"] = files["libs/b/pyproject.toml"].replace(">=1", ">=2")
    [found] = collected(files, "requirements.txt").mistakes
    assert (found.placed.line.number, found.fact) == (3, "the code has lab-a 1.5; change one of the two")


@pytest.mark.parametrize(
    "line",
    [
        *(
            "-e file:.",
            "-e file:///home/ada/code",
            "--editable=file:.[dev]",
            "-e .#egg=mine",
            ". ; os_name == 'posix'",
        ),
        *(
            "mine @ file:.",
            "mine[dev] @ file:///home/ada/code ; os_name == 'posix'",
            "-e .; os_name == 'posix'",
        ),
    ],
)
def test_an_address_of_a_directory_of_ones_own_is_that_directory(line: str) -> None:
    extra = "[project.optional-dependencies]\ndev = []\n"
    assert [each.name for each in collected({"pyproject.toml": NAMED + extra}, (line,)).own] == ["mine"]


@pytest.mark.parametrize("line", [". ; os_name == 'nt'", "mine @ file:. ; os_name == 'nt'"])
def test_a_directory_for_another_platform_is_none_of_the_requirements(line: str) -> None:
    found = collected({"pyproject.toml": NAMED}, (line,))
    assert (found.own, found.mistakes) == ([], [])


@pytest.mark.parametrize("line", ["-i https://pypi.org/simple", "--index-url=https://pypi.org/simple/"])
def test_the_default_index_of_an_export_is_no_choice(line: str) -> None:
    assert lines(collected({"r.txt": f"{line}\nattrs\n"}, "r.txt")) == ["attrs"]
    assert mistake({"r.txt": f"{line}.evil/\n"}, "-r r.txt").startswith("the operator chooses how")


def test_a_project_whose_name_is_computed_has_that_of_its_directory() -> None:
    [own] = collected({"setup.py": "setup(name=about['title'], version=about['version'])"}).own
    assert own.name == "code"
    assert "of a version that only its build knows is taken from" in describe_own(own)


def test_a_marker_without_a_meaning_excludes_nothing() -> None:
    text = (
        NAMED + "[project.optional-dependencies]\ndev = ['attrs']\nall = [\"mine[dev] ; os_name ~= 'x'\"]\n"
    )
    assert lines(collected({"pyproject.toml": text}, (".[all]",))) == ["attrs"]


def test_commands_of_a_text_are_read_as_those_of_a_table() -> None:
    points = '"""\n[console_scripts]\n# the one\ntrain = mine:main\n[a.b]\nc=mine:c\n"""'
    [own] = collected({"setup.py": f"setup(name='mine', entry_points={points})"}).own
    assert own.entry_points == (("console_scripts", "train", "mine:main"), ("a.b", "c", "mine:c"))


def test_limits_of_uv_are_constraints() -> None:
    text = NAMED + 'dependencies = ["attrs"]\n[tool.uv]\nconstraint-dependencies = ["idna<4", "a @ x"]\n'
    found = collected({"pyproject.toml": text}, "pyproject.toml")
    assert [(each.line.text, each.line.number) for each in found.constraints] == [("idna<4", 6)]
    assert [each.placed.line.text for each in found.mistakes] == ["a @ x"]


def test_a_project_that_is_not_utf_8_is_told_at_its_requirement() -> None:
    fact = mistake({"setup.cfg": "[metadata]\nname=\0"})
    assert fact == ".: setup.cfg: has zero bytes, as UTF-16 without its mark has them; save it as UTF-8"


SCRIPT = """\
#!/usr/bin/env python
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "attrs",
#   "idna>=3",
# ]
#
# [tool.uv]
# constraint-dependencies = ["idna<4"]
# ///
# more words
import attrs
"""


def test_packages_of_a_script_are_those_of_its_comment() -> None:
    lock = '[[package]]\nname = "attrs"\nversion = "23"\n'
    found = collected({"train.py": SCRIPT, "train.py.lock": lock}, "train.py")
    assert [(each.path, each.line.number, each.line.text) for each in found.lines] == [
        (Path("train.py"), 5, "attrs"),
        (Path("train.py"), 6, "idna>=3"),
    ]
    assert [each.line.text for each in found.constraints] == ["attrs==23", "idna<4"]
    assert (found.pythons, found.own) == ([(Path("train.py"), ">=3.11")], [])


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("import attrs\n", "has no line # /// script, behind which"),
        ("# /// script\nimport attrs\n# ///\n", "has no end, which is a line # ///"),
        ("# /// script\n# a = \n# ///\n", "Invalid value"),
        ("# /// script\n# dependencies = 5\n# ///\n", "dependencies is not a list of texts"),
    ],
)
def test_a_script_that_does_not_say_its_packages_is_told(text: str, fact: str) -> None:
    with pytest.raises(FileError, match=f"train.py: .*{fact}"):
        collected({"train.py": text}, "train.py")


LOCK = 'lock-version = "1.0"\ndefault-groups = ["dev"]\n[[packages]]\nname = "attrs"\n'


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("version = '1'\nmarker = \"'dev' in dependency_groups\"", "attrs==1 ; (python_version >= '3')"),
        ("version = '1'\nmarker = \"'gpu' in extras\"", "attrs==1 ; (python_version < '3')"),
        ("version = '1'\nmarker = \"'gpu' not in extras\"", "attrs==1 ; (python_version >= '3')"),
        (f"version = '1'\nsdist.hashes.sha256 = '{'a' * 64}'", f"attrs==1 --hash=sha256:{'a' * 64}"),
    ],
)
def test_a_lock_has_what_is_installed_by_default(said: str, wanted: str) -> None:
    assert lines(collected({"pylock.toml": LOCK + said}, "pylock.toml")) == [wanted]


@pytest.mark.parametrize(
    "said",
    [
        'vcs = {type = "git", url = "https://x", commit-id = "a"}',
        'version = "1"\narchive = {url = "https://x/a-1.zip"}',
        'archive = {path = "../a.whl"}',
    ],
)
def test_what_a_lock_has_from_no_index_is_refused_and_not_left_out(said: str) -> None:
    [found] = collected({"pylock.toml": LOCK + said}, "pylock.toml").mistakes
    assert (found.placed.line.number, found.fact[:32]) == (4, "packages come from the operator'")


def test_a_directory_of_a_lock_may_be_for_another_platform() -> None:
    said = 'directory = {path = "a", editable = true}\nmarker = "os_name == \'x\'"'
    assert collected({"pylock.toml": LOCK + said}, "pylock.toml").mistakes == []
    [found] = collected({"pylock.toml": LOCK + said.replace("'x'", "'posix'")}, "pylock.toml").mistakes
    assert found.fact.startswith("a: has no pyproject.toml")


def test_a_directory_of_a_lock_is_the_users_own_project() -> None:
    files = {"pylock.toml": LOCK + 'version = "1"\ndirectory = {path = "."}', "pyproject.toml": NAMED}
    found = collected(files, "pylock.toml")
    assert ([each.name for each in found.own], lines(found)) == (["mine"], [])


def test_a_lock_of_another_version_is_refused() -> None:
    with pytest.raises(FileError, match=r"is a lock of version 2\.0, and version 1 is read"):
        collected({"pylock.toml": LOCK.replace("1.0", "2.0")}, "pylock.toml")


def test_a_pyproject_as_a_file_of_requirements_is_the_project_too() -> None:
    text = (
        NAMED
        + 'dependencies = ["attrs"]\nrequires-python = ">=3.13"\n[project.scripts]\ntrain = "mine.cli:main"\n'
    )
    lock = '[[package]]\nname = "attrs"\nversion = "23"\n'
    found = collected({"pyproject.toml": text, "uv.lock": lock}, "pyproject.toml")
    assert (lines(found), [each.line.text for each in found.constraints]) == (["attrs"], ["attrs==23"])
    [own] = found.own
    assert own == OwnProject(
        str(CODE), "mine", "1.2", (), (("console_scripts", "train", "mine.cli:main"),), asked=False
    )
    assert found.pythons == [(Path("pyproject.toml"), ">=3.13")]
    assert describe_own(own).endswith("in the code, with its commands train")
    with pytest.raises(FileError, match="are known only to its build"):
        collected({"pyproject.toml": NAMED + 'dynamic = ["dependencies"]'}, "pyproject.toml")
    nameless = collected({"pyproject.toml": '[project]\ndependencies = ["attrs"]'}, "pyproject.toml")
    assert (lines(nameless), nameless.own) == (["attrs"], [])


@pytest.mark.parametrize(
    ("tool", "sources"),
    [
        ('[tool.setuptools.package-dir]\n"" = "lib"', ("lib",)),
        ('[tool.setuptools.packages.find]\nwhere = ["python"]', ("python",)),
        ('[tool.hatch.build.targets.wheel]\npackages = ["src/mine"]', ("src",)),
        ('[tool.hatch.build.targets.wheel]\npackages = ["mine"]', (".",)),
        ('[tool.uv.build-backend]\nmodule-root = ""', (".",)),
        ('[tool.setuptools.package-dir]\n"mine.net" = "python/mine/net"', ("python",)),
        ('[tool.hatch.build.targets.wheel]\nsources = ["python"]', ("python",)),
        ('[tool.hatch.build.targets.wheel.sources]\nlib = ""', ("lib",)),
        ('[tool.pdm.build]\npackage-dir = "lib"', ("lib",)),
        ('[tool.poetry]\npackages = [{include = "mine", from = "lib"}]', ("lib",)),
        ("", ()),
    ],
)
def test_the_place_of_the_sources_is_what_the_build_is_told(tool: str, sources: tuple[str, ...]) -> None:
    assert collected({"pyproject.toml": NAMED + tool}).own[0].sources == sources


@pytest.mark.parametrize(
    ("wanted", "python", "admitted"),
    [
        (">=3.13", "3.11", False),
        (">=3.11.4", "3.11", True),
        ("<3.11.5", "3.11", True),
        ("==3.11.*", "3.11", True),
        ("==3.11.7", "3.11", True),
        ("!=3.11.*", "3.11", False),
        (">=3.10,<3.11", "3.11", False),
    ],
)
def test_a_python_is_admitted_if_any_release_of_it_is(wanted: str, python: str, admitted: bool) -> None:  # noqa: FBT001
    assert admits_python(wanted, python) is admitted


CONDA = """\
name: lab
channels:
  - conda-forge
dependencies:
  - python=3.10
  - pytorch::pytorch>=2  # the trainer
  - pip
  - pip:
    - tqdm
    - "idna>=3"
"""


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("Pipfile", "is a file of pipenv, which is not read; write it down: pipenv requirements > requi"),
        (
            "poetry.lock",
            "is a file of poetry, which is not read; write it down: poetry export -o requirements",
        ),
        ("pixi.toml", "is a file of pixi, which is not read; write it down: pixi project export conda-env"),
    ],
)
def test_a_file_of_another_tool_is_told_once_with_its_command(name: str, fact: str) -> None:
    with pytest.raises(FileError, match=f"^{name}: {fact}"):
        collected({name: '[packages]\nnumpy = "*"\n'}, name)


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("numpy=1.26.4=py311h1", "is a line of conda; write numpy==1.26.4"),
        ("numpy=1.26", "is a line of conda; write numpy==1.26"),
        (
            "numpy==${NUMPY}",
            "${NUMPY} is a variable, which nobody sets where packages are resolved; write its value",
        ),
        ("-r https://x/requirements.txt", "includes an address; download it, and name the file"),
    ],
)
def test_a_line_that_pip_would_not_take_here_names_the_one_that_works(line: str, fact: str) -> None:
    [found] = collected({"requirements.txt": line}, "requirements.txt").mistakes
    assert found.fact == fact


def test_a_directory_may_have_a_name_that_ends_as_a_scheme_does() -> None:
    files = {"data:/requirements.txt": "-r more.txt\n", "data:/more.txt": "attrs\n"}
    assert lines(collected(files, "data:/requirements.txt")) == ["attrs"]


def test_a_file_of_setuptools_is_read_as_a_project() -> None:
    files = {"setup.py": "setup(name='mine', install_requires=['attrs'])\n"}
    assert lines(collected(files, "setup.py")) == ["attrs"]


def test_a_conda_file_is_told_once_with_what_can_be_taken_from_it() -> None:
    with pytest.raises(FileError) as told:
        collected({"environment.yml": CONDA}, "environment.yml")
    [line] = told.value.lines
    assert line == (
        "environment.yml: is a conda file, which is not read; its pip part can stand in a requirements.txt:"
        " tqdm, idna>=3; write these by their names in the index, as far as they are needed: pytorch>=2;"
        ' python is image: {python: "3.10"}'
    )
    with pytest.raises(FileError, match="is not a file of requirements"):
        collected({"x.yml": "a: 1"}, "x.yml")


def test_versions_of_a_lock_keep_their_markers() -> None:
    lock = (
        '[[package]]\nname = "attrs"\nversion = "1"\nresolution-markers = ["python_version < \'3.12\'"]\n'
        '[[package]]\nname = "attrs"\nversion = "2"\nresolution-markers = ["python_version >= \'3.12\'"]\n'
    )
    found = collected({"pyproject.toml": NAMED, "uv.lock": lock}, "pyproject.toml")
    assert [each.line.text for each in found.constraints] == [
        "attrs==1 ; (python_version < '3.12')",
        "attrs==2 ; (python_version >= '3.12')",
    ]


def test_a_lock_with_a_torch_of_its_own_says_so() -> None:
    own = '[[packages]]\nname = "torch"\nversion = "2.5.0"\n[tool.runner]\nisolated = true\n'
    assert locked_torch(own) == "2.5.0"
    assert locked_torch(own.replace("true", "false")) is None


def test_what_was_built_has_the_hash_of_its_source() -> None:
    wheel = "{name = 'a-1.whl', url = 'file:///a', hashes = {sha256 = 'made'}}"
    packages = "".join(f'[[packages]]\nname = "{name}"\nwheels = [{wheel}]\n' for name in "ab")
    lock = f'{packages}[tool.runner.built]\na = "https://x/a-1.tar.gz#sha256=told"\n'
    assert locked_hashes(lock) == {"a": "told", "b": "made"}
