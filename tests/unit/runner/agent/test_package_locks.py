"""Resolutions are shared, kept for a while, and broken off when nobody asks any more."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from runner.agent import package_locks
from runner.agent.package_locks import PackageLocks, PackagesPending, PendingLock
from runner.base.errors import Unavailable
from runner.base.fair_executor import FairExecutor
from runner.base.waiting import is_wanted
from runner.core.ports.packages import PackageRequest, Unresolvable
from runner.core.ports.users import User
from tests.fakes.engine.packages import FakePackages, lock_text
from tests.fakes.patience import patience

ME = User(1000, 1000, (1000,), "me")
YOU = User(1001, 1001, (1001,), "you")
TQDM = PackageRequest(("tqdm",))


@pytest.fixture
def packages() -> FakePackages:
    return FakePackages()


@pytest.fixture
def locks(packages: FakePackages, tmp_path: Path) -> PackageLocks:
    return PackageLocks(packages, FairExecutor("packages"), tmp_path)


def pending(ask: Callable[[], object]) -> PendingLock:
    with pytest.raises(PackagesPending) as raised:
        ask()
    return raised.value.pending


def found(locks: PackageLocks, request: PackageRequest = TQDM, who: User = ME) -> str:
    try:
        return locks.find(request, who)
    except PackagesPending as error:
        locks.wait(error.pending)
        return locks.find(request, who)


def test_a_lock_is_there_when_it_is_resolved(locks: PackageLocks, packages: FakePackages) -> None:
    assert found(locks) == lock_text("tqdm")
    assert found(locks) == lock_text("tqdm")
    assert len(packages.asked) == 1


def test_users_do_not_share_resolutions(locks: PackageLocks, packages: FakePackages) -> None:
    found(locks)
    found(locks, who=YOU)
    assert [name for _, name in packages.asked] == ["me", "you"]


def test_a_lock_is_asked_for_again_when_the_index_may_have_changed(
    locks: PackageLocks, packages: FakePackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(locks)
    packages.gate.clear()
    monkeypatch.setattr(package_locks, "FRESH_S", -1.0)
    waiting = pending(lambda: locks.find(TQDM, ME))
    packages.gate.set()
    locks.wait(waiting)
    assert len(packages.asked) == 2


def test_a_failure_is_told_to_all_who_waited_and_then_tried_again(
    locks: PackageLocks, packages: FakePackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages.missing["tqdm"] = "no such thing"
    for _ in range(2):
        with pytest.raises(Unresolvable, match="no such thing"):
            found(locks)
    assert len(packages.asked) == 1
    packages.gate.clear()
    monkeypatch.setattr(package_locks, "ERROR_FRESH_S", -1.0)
    pending(lambda: locks.find(TQDM, ME))
    packages.gate.set()


def test_what_nobody_waits_for_is_broken_off(
    locks: PackageLocks, packages: FakePackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_locks, "PATIENCE_S", 0.01)
    packages.gate.clear()
    waiting = pending(lambda: locks.find(TQDM, ME))
    assert waiting.done.wait(patience())
    assert packages.left == [waiting.job_id]


def test_what_somebody_waits_for_goes_on(
    locks: PackageLocks, packages: FakePackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_locks, "PATIENCE_S", 0.0)
    packages.gate.clear()
    monkeypatch.setattr(locks, "leave", lambda *_, **__: None)
    waiting, told = pending(lambda: locks.find(TQDM, ME)), Event()
    locks.join(waiting, told.set)
    locks._give_up(waiting)
    assert packages.left == []
    packages.gate.set()
    assert told.wait(patience())


def test_whoever_joins_late_is_told_at_once(locks: PackageLocks, packages: FakePackages) -> None:
    packages.gate.clear()
    waiting, told = pending(lambda: locks.find(TQDM, ME)), Event()
    packages.gate.set()
    locks.wait(waiting)
    locks.join(waiting, told.set)
    assert told.is_set()


def test_a_wait_ends_with_its_request(
    locks: PackageLocks, packages: FakePackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_locks, "RECHECK_S", 0.01)
    packages.gate.clear()
    waiting = pending(lambda: locks.find(TQDM, ME))
    token = is_wanted.set(lambda: False)
    try:
        with pytest.raises(Unavailable, match="nobody waits"):
            locks.wait(waiting)
    finally:
        is_wanted.reset(token)
        packages.gate.set()


def test_few_locks_are_kept(locks: PackageLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_locks, "KEPT", 3)
    for number in range(10):
        found(locks, PackageRequest((f"p{number}",)))
    assert len(locks._known) <= 4


def test_a_fresh_lock_is_kept_while_there_is_room(
    locks: PackageLocks, packages: FakePackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_locks, "KEPT", 4)
    for _ in range(2):
        for number in range(4):
            found(locks, PackageRequest((f"p{number}",)))
    assert len(packages.asked) == 4


def test_the_log_of_a_resolution_is_removed(locks: PackageLocks, tmp_path: Path) -> None:
    found(locks)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_of_the_daemon_is_no_empty_lock(
    locks: PackageLocks, packages: FakePackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a build answers 5 where a list was expected."""

    def fail(*_: object) -> str:
        raise TypeError("'int' object is not iterable")

    monkeypatch.setattr(packages, "resolve", fail)
    with pytest.raises(Unavailable, match="could not be resolved"):
        found(locks)
