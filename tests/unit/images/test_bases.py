"""A base is looked for in three places, the quickest first."""

import json
from pathlib import Path

import pytest

from images import bases
from images.errors import BuildFailed, HostFault
from images.log import BuildLog
from images.ports import StepEnd
from images.recipe import Base
from images.settings import LOCAL_BASE, PULLED_BASE, ImageSettings
from tests.fakes.engine.image_engine import FACTS, FakeEngine


@pytest.fixture(autouse=True)
def _no_bootstrap_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def resolved(engine: FakeEngine, tmp_path: Path, **settings: object) -> Base:
    with BuildLog(tmp_path / "log.txt") as log:
        return bases.resolve(engine, ImageSettings(cache_dir=tmp_path, **settings), log)  # type: ignore[arg-type]


def test_the_local_base_is_taken_without_asking_a_registry(tmp_path: Path) -> None:
    engine = FakeEngine(registry={PULLED_BASE})
    local = engine.add(LOCAL_BASE)
    base = resolved(engine, tmp_path)
    assert (base.id, engine.pulled) == (local.id, [])
    assert (base.python, base.machine, base.glibc) == ("3.11", "x86_64", (2, 36))


def test_builds_name_the_base_by_its_id(tmp_path: Path) -> None:
    engine = FakeEngine()
    local = engine.add(LOCAL_BASE)
    base = resolved(engine, tmp_path)
    engine.add(LOCAL_BASE)  # the tag moves on
    found = engine.image(base.tag)
    assert found is not None
    assert found.id == local.id


def test_what_was_pulled_before_is_not_pulled_again(tmp_path: Path) -> None:
    engine = FakeEngine()
    there = engine.add(PULLED_BASE)
    assert resolved(engine, tmp_path).id == there.id
    assert engine.pulled == []


def test_without_a_local_base_one_is_pulled(tmp_path: Path) -> None:
    engine = FakeEngine(registry={PULLED_BASE})
    resolved(engine, tmp_path)
    assert engine.pulled == [PULLED_BASE]


def test_a_configured_base_is_never_replaced_by_another(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.add(LOCAL_BASE)
    with pytest.raises(BuildFailed, match="ours:1: no such host"):
        resolved(engine, tmp_path, base="ours:1")


def test_when_nothing_works_every_way_that_was_tried_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BuildFailed, match=r"none is available; pull python.*no such host; bootstrap: neither"
    ):
        resolved(FakeEngine(), tmp_path)


def test_a_registry_that_is_down_is_no_fault_of_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(_: FakeEngine, reference: str) -> None:
        raise HostFault(f"pull {reference}: EOF")

    monkeypatch.setattr(FakeEngine, "pull", pull)
    with pytest.raises(HostFault, match=r"none is available; pull python.*EOF; bootstrap: neither"):
        resolved(FakeEngine(), tmp_path)


@pytest.mark.parametrize(("code", "kind"), [(100, HostFault), (127, BuildFailed)])
def test_an_archive_that_is_down_is_no_fault_of_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[BuildFailed]
) -> None:
    said = "Get:1 ...\nE: Failed to fetch http://archive.example/\n"
    engine = FakeEngine(facts={**FACTS, "has": {"cc": False, "cxx": True, "headers": True, "venv": True}})
    engine.add(LOCAL_BASE)
    probe = FakeEngine.step
    monkeypatch.setattr(
        FakeEngine,
        "step",
        lambda fake, step: StepEnd(code, said) if step.commit else probe(fake, step),
    )
    with pytest.raises(BuildFailed, match=rf"installing gcc ends with {code}: E: Failed to fetch") as caught:
        resolved(engine, tmp_path)
    assert type(caught.value) is kind


def test_a_site_without_a_registry_is_not_made_to_wait_for_one(tmp_path: Path) -> None:
    engine = FakeEngine()
    with pytest.raises(BuildFailed, match="none is available; bootstrap: neither"):
        resolved(engine, tmp_path, pull=None)
    assert engine.pulled == []


def test_a_base_is_asked_once_what_it_holds(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.add(LOCAL_BASE)
    assert resolved(engine, tmp_path) == resolved(engine, tmp_path)
    assert len(engine.steps) == 1


@pytest.mark.parametrize("said", ["5", "[]", "no JSON", "[" * 100_000, "{}"], ids=range(5))
def test_an_odd_answer_of_a_base_is_told_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    engine = FakeEngine()
    engine.add(LOCAL_BASE)
    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "step", lambda *_: StepEnd(0, said))
        with pytest.raises(BuildFailed, match="python3 does not say what it is"):
            resolved(engine, tmp_path)
    assert resolved(engine, tmp_path).python


def test_warnings_of_the_python_of_a_base_are_no_part_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    engine.add(LOCAL_BASE)
    said = f"ERROR: ld.so: cannot be preloaded: ignored.\n{json.dumps(FACTS)}\nError in sys.excepthook:\n"
    monkeypatch.setattr(FakeEngine, "step", lambda *_: StepEnd(0, said))
    assert resolved(engine, tmp_path) == resolved(engine, tmp_path)


@pytest.mark.parametrize("torn", ["", '{"python": "3.', "{}"])
def test_a_base_is_asked_again_if_its_answer_was_not_kept_whole(tmp_path: Path, torn: str) -> None:
    engine = FakeEngine()
    engine.add(LOCAL_BASE)
    base = resolved(engine, tmp_path)
    [kept] = (tmp_path / "bases").iterdir()
    kept.write_text(torn)
    assert resolved(engine, tmp_path) == resolved(engine, tmp_path) == base
    assert len(engine.steps) == 2


def test_a_base_without_a_compiler_gets_one_and_the_certificate_is_only_shown_to_it(tmp_path: Path) -> None:
    lacking = {"cc": False, "cxx": False, "headers": True, "venv": True}
    engine = FakeEngine(facts={**FACTS, "has": lacking})
    plain = engine.add(LOCAL_BASE)
    certificate = tmp_path / "ca.pem"
    base = resolved(engine, tmp_path, ca_file=certificate)
    [install] = [step for step in engine.steps if step.commit]
    assert base.id != plain.id
    assert "install -y --no-install-recommends gcc g++ " in install.argv[-1]
    assert install.files["/run/runner-ca.pem"] == certificate
    assert all(target.startswith("/run/") for target in install.files)


def test_a_completed_base_is_used_again(tmp_path: Path) -> None:
    lacking = {"cc": False, "cxx": True, "headers": True, "venv": True}
    engine = FakeEngine(facts={**FACTS, "has": lacking})
    engine.add(LOCAL_BASE)
    first = resolved(engine, tmp_path)
    assert resolved(engine, tmp_path) == first
    assert len([step for step in engine.steps if step.commit]) == 1


def test_apt_is_told_the_hosts_proxies_and_the_certificate() -> None:
    assert bases.apt_options(Path("/ca.pem"), {"http_proxy": "http://proxy:3128"}) == (
        'Acquire::http::Proxy "http://proxy:3128";\nAcquire::https::CAInfo "/run/runner-ca.pem";\n'
    )
    assert bases.apt_options(None, {}) == ""
