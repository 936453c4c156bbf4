"""What a Dockerfile of a user may say."""

import pytest

from images.dockerfile import find_mistakes

OFFERED = frozenset({"site/ours:1"})


def facts(text: str, offered: frozenset[str] | None = OFFERED) -> list[tuple[int, str]]:
    return [(each.line, each.fact) for each in find_mistakes(text, offered)]


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
        ("FROM ${BASE}\nRUN x \\\nADD http://x /y\n", 3, "ADD downloads"),
        ("FROM ${BASE}\nRUN x \\\xa0\nCOPY --from=evil /a /b\n", 3, "is no earlier stage of this file"),
        ("FROM ${BASE}\nRUN x \\\n\n# y\nFROM evil\n", 5, "evil: is not offered here"),
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
