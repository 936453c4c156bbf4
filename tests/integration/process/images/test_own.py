"""Images from Dockerfiles of users, with an engine that builds nothing."""

import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from unittest import mock

import pytest

from images.errors import BuildCancelled, BuildFailed, HostFault
from images.log import BuildLog
from images.own import CANONICAL, MOST_SAID_BYTES, DockerfileImages, DockerfileRules
from images.packages.values import Limits
from tests.fakes.engine.image_engine import FakeEngine


class Site:
    """An engine with one image, and what builds from Dockerfiles on it."""

    def __init__(self, root: Path, rules: DockerfileRules, seconds: float = 60.0) -> None:
        self.engine = FakeEngine()
        self.image = self.engine.add("runner-cpu:h-1").id
        (root / "cache").mkdir()
        self.images = DockerfileImages(root / "cache", lambda: self.engine, rules, Limits(seconds))
        self.log = BuildLog(root / "log.txt")

    def ensure(self, files: Mapping[str, bytes], path: str = "Dockerfile", uid: int = 7) -> str:
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name, body in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
        context.seek(0)
        return self.images.ensure(context, path, self.image, "cpu", uid, self.log)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, DockerfileRules(frozenset(), cache=False))
    with made.log:
        yield made


GOOD = {"src/Dockerfile": b"# mine\nfrom $BASE\nRUN \\\n  x\n", "x.c": b"int main;"}


def test_an_image_below_is_pulled_as_those_of_jobs_are(tmp_path: Path) -> None:
    site = Site(tmp_path, DockerfileRules({"lab.example/*"}))
    site.engine.registry = {"lab.example/x:1"}
    with site.log:
        site.ensure({"Dockerfile": b"FROM lab.example/x:1 AS x\nFROM x\nFROM $BASE\nCOPY --from=x a b\n"})
        assert site.engine.pulled == ["lab.example/x:1"]
        with pytest.raises(BuildFailed, match=r"example\.org/x:1: is not offered here"):
            site.ensure({"Dockerfile": b"FROM example.org/x:1\n"})


def test_an_image_below_that_cannot_be_had_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, DockerfileRules())
    text = b"# mine\nFROM $BASE AS x\nFROM lab.exmaple/x:1\n"
    with site.log:
        with pytest.raises(BuildFailed, match=r"^src/Dockerfile:3: image lab\.exmaple/x:1: no such host$"):
            site.ensure({"src/Dockerfile": text}, "src/Dockerfile")
        assert site.engine.pulled == []
        site.engine.registry = {"lab.exmaple/x:1"}
        down = HostFault("pull lab.exmaple/x:1: EOF")
        monkeypatch.setattr(site.engine, "pull", mock.Mock(side_effect=down))
        with pytest.raises(HostFault, match=r"^Dockerfile:3: pull lab\.exmaple/x:1: EOF$"):
            site.ensure({"Dockerfile": text})


def test_the_builder_gets_what_was_understood_and_not_the_text(site: Site) -> None:
    made = site.ensure(GOOD, "src/Dockerfile")
    [built] = site.engine.builds
    assert built.dockerfile == "ARG BASE\nFROM ${BASE}\nRUN x\n"
    assert built.files == {"src/Dockerfile", "x.c", CANONICAL}
    request = built.request
    assert dict(request.arguments) == {"BASE": "runner-cpu:h-1"}
    assert (request.network, request.cache, request.memory_bytes) == (False, False, 4 * 1024**3)
    image = site.engine.image(made)
    assert image is not None
    assert (image.labels["runner.kind"], image.labels["runner.owner"]) == ("dockerfile", "7")


def test_a_base_that_is_replaced_is_in_the_log(site: Site, tmp_path: Path) -> None:
    site.ensure({"Dockerfile": b"ARG BASE=debian\nFROM $BASE\n"})
    assert "Dockerfile:1: ARG BASE=debian: BASE is the image of the job" in (tmp_path / "log.txt").read_text()


def test_the_same_code_of_the_same_user_is_built_once(site: Site) -> None:
    made = site.ensure(GOOD, "src/Dockerfile")
    assert site.ensure(GOOD, "src/Dockerfile") == made
    assert len(site.engine.builds) == 1
    assert site.ensure(GOOD, "src/Dockerfile", uid=8) != made
    assert site.ensure({**GOOD, "x.c": b"int more;"}, "src/Dockerfile") != made


def test_an_image_without_a_tag_gets_one(site: Site) -> None:
    site.engine.tagged.clear()
    site.ensure(GOOD, "src/Dockerfile")
    assert site.engine.builds[0].request.arguments["BASE"].startswith("runner-base:id-")
    site.image = "sha256:gone"
    with pytest.raises(BuildFailed, match="is not in the engine"):
        site.ensure(GOOD, "src/Dockerfile")


@pytest.mark.parametrize(
    ("files", "fact"),
    [
        ({"x": b""}, "Dockerfile: is not in the code of the job; does .gitignore leave it out?"),
        ({"Dockerfile": b"\xff\xfe"}, "Dockerfile: is not UTF-8 text"),
        ({"Dockerfile": b"#" * 300_000}, "Dockerfile: is larger than 256 KiB"),
        ({"Dockerfile": b"FROM evil\n"}, "Dockerfile:1: FROM evil: evil: is not offered here"),
    ],
)
def test_what_may_not_be_built_reaches_no_builder(site: Site, files: Mapping[str, bytes], fact: str) -> None:
    with pytest.raises(BuildFailed, match=re.escape(fact)):
        site.ensure(files)
    assert site.engine.builds == []


def test_a_build_that_fails_or_is_not_wanted_leaves_no_image(site: Site) -> None:
    site.engine.failing = ("a line",)
    with pytest.raises(BuildFailed, match="exit code: 1"):
        site.ensure(GOOD, "src/Dockerfile")
    assert len(site.engine.store) == 1
    site.log.token.cancel()
    with pytest.raises(BuildCancelled):
        site.ensure(GOOD, "src/Dockerfile")


def test_a_build_whose_commands_print_without_end_is_ended(site: Site, tmp_path: Path) -> None:
    site.engine.failing = repeat("y" * 1024**2, 80)
    with pytest.raises(BuildFailed, match="dockerfile: its commands print more than 64 MiB and were ended"):
        site.ensure(GOOD, "src/Dockerfile")
    assert (tmp_path / "log.txt").stat().st_size <= MOST_SAID_BYTES + 4096


def test_a_dockerfile_that_was_changed_after_its_check_is_told_in_a_few_lines(site: Site) -> None:
    with pytest.raises(BuildFailed, match=r"^Dockerfile:1: x: x is no instruction") as found:
        site.ensure({"Dockerfile": b"x\n" * 100_000})
    assert str(found.value).count("\n") < 20


def test_a_dockerfile_that_is_a_link_to_itself_is_not_there(site: Site) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w", format=tarfile.GNU_FORMAT) as tar:
        member = tarfile.TarInfo("Dockerfile")
        member.type, member.linkname = tarfile.SYMTYPE, "Dockerfile"
        tar.addfile(member)
    context.seek(0)
    with pytest.raises(BuildFailed, match="Dockerfile: is not in the code of the job"):
        site.images.ensure(context, "Dockerfile", site.image, "cpu", 7, site.log)


def test_a_build_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    site = Site(tmp_path, DockerfileRules(), seconds=0.1)
    site.engine.endless = True
    with site.log, pytest.raises(BuildFailed, match=r"took longer than 0\.1 s and was ended"):
        site.ensure(GOOD, "src/Dockerfile")
