"""Outputs of builds that failed, as compilers, build tools and Python write them, and the cause in each."""

import pytest

from images.packages.build_output import MAX_CAUSE, find_cause

FRAMES = '  File "<string>", line 31, in <module>\n    made = backend.build_wheel("/tmp/out", {})'
TRACEBACK = f"Traceback (most recent call last):\n{FRAMES}"
GCC = "error: command '/usr/bin/gcc' failed with exit code 1"
CALLED = "subprocess.CalledProcessError: Command '['cmake', '..']' returned non-zero exit status 1."

CASES = {
    "RuntimeError: needs a display": ["running build", TRACEBACK, "RuntimeError: needs a display"],
    "ModuleNotFoundError: No module named 'torch'": [
        TRACEBACK,
        "ModuleNotFoundError: No module named 'torch'",
    ],
    "setuptools.errors.Mine": [TRACEBACK, "setuptools.errors.Mine"],
    "error: command 'gcc' failed: No such file or directory": [
        "building 'x' extension",
        "gcc -c x.c",
        "error: command 'gcc' failed: No such file or directory",
    ],
    "x.c:1:10: fatal error: foo.h: No such file or directory": [
        "x.c:1:10: fatal error: foo.h: No such file or directory",
        "    1 | #include <foo.h>",
        "      |          ^~~~~~~",
        "compilation terminated.",
        GCC,
    ],
    "x.c:3:5: error: 'foo' undeclared (first use in this function)": [
        "x.c: In function 'f':",
        "x.c:3:5: error: 'foo' undeclared (first use in this function)",
        "x.c:9:1: error: expected ';'",
        GCC,
    ],
    "/usr/bin/ld: cannot find -lfoo: No such file or directory": [
        "/usr/bin/ld: cannot find -lfoo: No such file or directory",
        "collect2: error: ld returned 1 exit status",
        GCC,
    ],
    "RuntimeError: needs version 2": [
        "conftest.c:1:10: fatal error: probe.h: No such file or directory",
        "compilation terminated.",
        "probe.h: no",
        TRACEBACK,
        "RuntimeError: needs version 2",
    ],
    'CMake Error at CMakeLists.txt:3 (find_package): Could not find a package "X"': [
        "CMake Error at CMakeLists.txt:3 (find_package):",
        '  Could not find a package "X"',
        "-- Configuring incomplete, errors occurred!",
        TRACEBACK,
        CALLED,
    ],
    "../meson.build:1:0: ERROR: Unknown compiler(s): [['cc']]": [
        "../meson.build:1:0: ERROR: Unknown compiler(s): [['cc']]",
        "A full log can be found at x",
        TRACEBACK,
        CALLED,
    ],
    "error[E0425]: cannot find value `x` in this scope": [
        "error[E0425]: cannot find value `x` in this scope",
        " --> src/lib.rs:2:5",
        "error: could not compile `x` (lib) due to 1 previous error",
    ],
    "Error: pg_config executable not found.": [
        "Error: pg_config executable not found.",
        "",
        "pg_config is required to build it.",
        "See the manual.",
    ],
    "RuntimeError: The detected CUDA version (12.1) mismatches": [
        TRACEBACK,
        "RuntimeError:",
        "The detected CUDA version (12.1) mismatches",
        "that of PyTorch (11.7).",
    ],
    "TypeError: outer": [
        TRACEBACK,
        "ValueError: inner",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        TRACEBACK,
        "TypeError: outer",
    ],
    "ValueError: of its own program": [TRACEBACK, "ValueError: of its own program", TRACEBACK, CALLED],
    "SyntaxError: Missing parentheses in call to 'print'": [
        '  File "setup.py", line 2',
        '    print "x"',
        "    ^^^^^^^^^",
        "SyntaxError: Missing parentheses in call to 'print'",
    ],
    "CMake is not installed": ["=====", "CMake is not installed", "====="],
    "Python 3.13 or newer is needed": ["Python 3.13 or newer is needed"],
    GCC: [GCC],
    "": ["", " "],
}


@pytest.mark.parametrize("cause", CASES)
def test_the_cause_of_a_failed_build_is_the_line_that_tells_it(cause: str) -> None:
    assert find_cause("\n".join(CASES[cause])) == cause


def test_a_long_cause_is_cut() -> None:
    assert len(find_cause(f"error: {'x' * 10_000}")) == MAX_CAUSE
