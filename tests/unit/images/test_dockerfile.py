"""Contents that a Dockerfile of a user may have."""

import pytest

from images.dockerfile import read_dockerfile

OFFERED = frozenset({"site/ours:1"})


def facts(text: str, offered: frozenset[str] | None = OFFERED) -> list[tuple[int, str]]:
    return [(each.line, each.fact) for each in read_dockerfile(text, offered).mistakes]


@pytest.mark.parametrize(
    "text",
    [
        "FROM ${BASE}\nRUN gcc -o /x x.c\n",
        "# a comment\n\nARG VERSION=1\nfrom $BASE as build\nrun make \\\n  # why\n  all\nFROM site/ours:1\n",
        "FROM $BASE AS b\nFROM b\nCOPY --from=B --chown=1:1 /a /b\nCOPY --from=0 /a /b\nUSER me\nENV A=b\n",
        "FROM --platform=linux/amd64 ${BASE} AS a\nFROM a\nWORKDIR /x\nCMD echo << \n",
        "FROM scratch\nCOPY . /\n",
        "\ufeffFROM ${BASE}\r\nRUN a \\\r\n b\r\n",
    ],
)
def test_what_ends_up_in_an_image_may_be_said(text: str) -> None:
    assert facts(text) == []


@pytest.mark.parametrize(
    ("text", "line", "fact"),
    [
        ("", 1, "has no FROM; write FROM ${BASE}"),
        ("RUN x\nFROM ${BASE}\n", 1, "stands before FROM; begin with FROM ${BASE}"),
        ("FROM debian:12\n", 1, "debian:12: is not offered here; there are ${BASE}, site/ours:1"),
        ("FROM\n", 1, "names no image"),
        ("FROM a b\n", 1, "must be FROM IMAGE, or FROM IMAGE AS NAME"),
        ("ARG X=evil\nFROM $X\n", 2, "only BASE is a variable that FROM may name"),
        ("FROM ${BASE:-evil}\n", 1, "only BASE is a variable that FROM may name"),
        ("FROM ${BASE}\nADD http://169.254.169.254/ /x\n", 2, "ADD downloads with the network of the engine"),
        ("FROM ${BASE}\nONBUILD RUN x\n", 2, "ONBUILD is for images that others build on"),
        ("FROM ${BASE}\nVOLUME /x\n", 2, "VOLUME is for the engine's own storage"),
        ("FROM ${BASE}\nHEALTHCHECK CMD x\n", 2, "HEALTHCHECK would run beside the job"),
        ("FROM ${BASE}\nMOUNT /x\n", 2, "MOUNT is no instruction that is known here"),
        ("FROM ${BASE}\nRUN --mount=type=secret,id=x cat\n", 2, "RUN takes no options here"),
        ("FROM ${BASE}\nRUN  --network=host x\n", 2, "RUN takes no options here"),
        ("FROM ${BASE}\nRUN\t--security=insecure x\n", 2, "RUN takes no options here"),
        ("FROM ${BASE}\nRUN <<EOF\nx\nEOF\n", 2, "has a here-document"),
        ("FROM ${BASE}\nCOPY --from=runner-cpu:current /a /b\n", 2, "is no earlier stage of this file"),
        ("FROM ${BASE}\nCOPY --from=1 /a /b\n", 2, "is no earlier stage of this file"),
        ("FROM ${BASE}\nCOPY --from=$X /a /b\n", 2, "is no earlier stage of this file"),
        ("FROM ${BASE}\nCOPY --parents a b\n", 2, "--parents: is no option of COPY"),
        ("# syntax=evil/frontend\nFROM ${BASE}\n", 1, "has one syntax; remove this line"),
        ("# escape=`\nFROM ${BASE}\n", 1, "has one syntax; remove this line"),
        ("FROM ${BASE}\nRUN x \\\r \nCOPY --from=evil /a /b\n", 2, "has a control character"),
        ("FROM ${BASE}\nRUN x \\\r\r\nADD http://127.0.0.1/ /b\n", 2, "has a control character"),
        ("FROM ${BASE}\nRUN x \\\xa0\nUSER y\n", 2, "has a blank that is neither a space nor a tab"),
        ("FROM ${BASE}\nRUN \u2003--mount=type=ssh x\n", 2, "has a blank that is neither a space"),
        ("FROM ${BASE}\nRUN echo \\\\\nADD http://127.0.0.1/ /b\n", 2, "ends in a backslash before a"),
        ("FROM ${BASE}\nRUN x \\ \\", 2, "ends in a backslash before a backslash"),
        ('FROM ${BASE}\nCOPY --chown="1 2" --from=evil /a /b\n', 2, "has a value that is not known here"),
        ("FROM ${BASE}\nCOPY --chown=1\\ --from=evil /a /b\n", 2, "has a value that is not known here"),
        ("FROM ${BASE}\nCOPY --fr\\om=evil /a /b\n", 2, "is no option of COPY that is known here"),
        ("FROM ${BASE}\nCOPY --from=0 /a /b\n", 2, "is no earlier stage of this file"),
        ("FROM ${BASE} AS a\nFROM 0\n", 2, "0: is not offered here"),
        ("FROM ${BASE} AS a\nFROM ${BASE} AS A\n", 2, "A: must be a new name"),
        ("FROM ${BASE} AS 7\n", 1, "7: must be a new name"),
        ("FROM site/ours:1\\\n@evil\n", 1, "site/ours:1@evil: is not offered here"),
        ("FROM ${BASE}\n\u212aUN x\n", 2, "is no instruction that is known here"),
        ("FROM ${BASE}\nCMD --x\n", 2, "CMD takes no options here"),
        ("FROM ${BASE}\nUSER\n", 2, "USER has nothing behind it"),
        ("FROM ${BASE}\nCOPY --link\n", 2, "COPY names no files"),
        ("FROM ${BASE}\nRUN echo " + "\\\nxxxxxxxxx" * 8000, 2, "is longer than 65000 bytes"),
        ("FROM ${BASE}\nRUN x \\\x0b\nUSER y\n", 2, "has a control character"),
        ("FROM ${BASE}\nRUN x \\", 0, ""),
    ],
)
def test_what_reaches_for_more_is_told_at_its_line(text: str, line: int, fact: str) -> None:
    found = facts(text)
    if not fact:
        assert found == []
        return
    assert found
    assert found[0][0] == line
    assert fact in found[0][1]


def test_all_images_may_be_named_where_the_daemon_is_ones_own() -> None:
    assert facts("FROM debian:12\n", None) == []
    assert facts("ARG X\nFROM $X\n", None) != []


def test_every_mistake_is_told() -> None:
    assert len(facts("FROM evil\nADD a b\nRUN --mount=x y\n")) == 3


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("from $BASE\nrun a \\\n\n # why\n\tb\n", "FROM ${BASE}\nRUN a \tb\n"),
        ("FRO\\\nM ${BASE}\nR\\ \t\r\nUN x\\\ny\\", "FROM ${BASE}\nRUN xy\n"),
        (
            "FROM ${BASE}\nRUN x \\\nADD http://127.0.0.1/ /b",
            "FROM ${BASE}\nRUN x ADD http://127.0.0.1/ /b\n",
        ),
        ("ARG A=1\nFROM $BASE as X\nFROM X", "ARG A=1\nFROM ${BASE} AS x\nFROM x\n"),
        (
            "FROM $BASE as X\nFROM site/ours:1\nCOPY  --from=X --link  --chown=$A:1 a  b\n",
            "FROM ${BASE} AS x\nFROM site/ours:1\nCOPY --from=x --link --chown=$A:1 a  b\n",
        ),
    ],
)
def test_a_builder_gets_one_instruction_a_line(text: str, canonical: str) -> None:
    reading = read_dockerfile(text, OFFERED)
    assert (reading.mistakes, reading.text) == ((), f"ARG BASE\n{canonical}")
    assert reading.images == ({"site/ours:1": 2} if "site/ours:1" in text else {})


@pytest.mark.parametrize(
    ("argument", "lines"),
    [
        ("BASE=debian", [2]),
        ('A=1 "BASE=x"', [2]),
        ("BASE=x\nARG BASE=y", [2]),
        ("BASE", []),
        ("MY_BASE=debian", []),
        ("A=BASE", []),
    ],
)
def test_a_base_of_the_files_own_is_told_for_it_is_replaced(argument: str, lines: list[int]) -> None:
    reading = read_dockerfile(f"\nARG {argument}\nFROM ${{BASE}}\n", OFFERED)
    assert (reading.mistakes, [each.line for each in reading.warnings]) == ((), lines)


ENDS = ("\\", "\\ ", "\\\t", "\\\r", "\\\r ", "\\\x0c", "\\\x85", "\\\u2028", "\\\\", "\\ \\", "", "`")
STARTS = ("", " ", "\t", "\r", "\x0c", "\xa0", "\n", "#\n", "# \\\n", "#")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", STARTS)
def test_no_builder_finds_an_instruction_that_was_not_read(end: str, start: str) -> None:
    """A builder has no lines to join and no comments to skip, whatever it takes for one."""
    text = f"FROM ${{BASE}}\nRUN x {end}\n{start}COPY --from=evil a b\n"
    reading = read_dockerfile(text, OFFERED)
    lines = reading.text.splitlines()
    assert reading.mistakes or [line.split(" ")[0] for line in lines] == ["ARG", "FROM", "RUN"]
    assert not any(line.endswith("\\") for line in lines)
