"""A lock is a pylock.toml, reads back as it was, and fits the image that it was made for."""

import re

import pytest
from packaging.pylock import Pylock

from images.errors import BuildFailed
from images.packages.lock import Lock, Package, Wheel, parse_lock

WHEEL = Wheel("tqdm-4.0-py3-none-any.whl", "https://index/tqdm-4.0-py3-none-any.whl", "a" * 64, 1024)
LOCK = Lock("3.11", "x86_64", (Package("tqdm", "4.0", WHEEL),), {"torch": "2.13.0+cpu"})


def test_a_lock_reads_back_as_it_was() -> None:
    assert parse_lock(LOCK.text) == LOCK
    alone = Lock("3.12", "aarch64", (), isolated=True)
    assert parse_lock(alone.text) == alone


def test_others_read_a_lock_as_the_standard_says() -> None:
    import tomllib

    found = Pylock.from_dict(tomllib.loads(LOCK.text))
    found.validate()
    assert [(str(each.name), str(each.version)) for each in found.packages] == [("tqdm", "4.0")]


def test_odd_names_are_quoted() -> None:
    wheel = Wheel('a"b\x7f.whl', "https://index/ü", "b" * 64)
    assert parse_lock(Lock("3.11", "x86_64", (Package("a", "1", wheel),)).text).packages[0].wheel == wheel


def test_equal_locks_have_equal_digests_and_sizes() -> None:
    assert LOCK.digest == parse_lock(LOCK.text).digest
    assert LOCK.size_bytes == 1024


@pytest.mark.parametrize(
    ("held", "fact"),
    [
        (
            {"torch": "2.14.0"},
            "the lock takes torch 2.13.0+cpu from the image, and the image has torch 2.14.0",
        ),
        ({}, "the image has no torch now; submit the job again"),
    ],
)
def test_an_image_that_has_changed_is_told(held: dict[str, str], fact: str) -> None:
    with pytest.raises(BuildFailed, match=re.escape(fact)):
        LOCK.check_base(held)


def test_an_image_that_holds_what_it_did_fits() -> None:
    LOCK.check_base({"torch": "2.13.0+cpu", "numpy": "2.4.6"})
