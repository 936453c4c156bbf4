"""Admission of browsers, and of requests that change something."""

from dataclasses import dataclass

import pytest

from runner.dashboard.access import LINK_S, MOST_SESSIONS, SESSION_S, Access, Denied


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(clock: Clock) -> Access:
    return Access(clock)


def test_a_link_works_once(access: Access) -> None:
    ticket = access.new_ticket()
    session = access.log_in(ticket)
    assert access.check_session(session) == session
    with pytest.raises(Denied, match="used or is too old") as denied:
        access.log_in(ticket)
    assert denied.value.status == 403


def test_a_link_is_good_for_ten_minutes(access: Access, clock: Clock) -> None:
    ticket = access.new_ticket()
    clock.now = LINK_S + 1
    with pytest.raises(Denied):
        access.log_in(ticket)


def test_a_wrong_guess_does_not_void_the_link(access: Access) -> None:
    ticket = access.new_ticket()
    with pytest.raises(Denied):
        access.log_in("guess")
    assert access.log_in(ticket)


@pytest.mark.parametrize("cookie", [None, "", "x", "é"])
def test_without_the_cookie_nothing_is_shown(access: Access, cookie: str | None) -> None:
    access.log_in(access.new_ticket())
    with pytest.raises(Denied) as denied:
        access.check_session(cookie)
    assert denied.value.status == 401


def test_the_oldest_browser_is_logged_out_when_there_are_too_many(access: Access) -> None:
    sessions = [access.log_in(access.new_ticket()) for _ in range(MOST_SESSIONS + 1)]
    assert access.check_session(sessions[-1])
    with pytest.raises(Denied):
        access.check_session(sessions[0])


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8433", "127.0.0.1:1", "[::1]:8433", "[::1]", "LOCALHOST:1"]
)
def test_our_own_names_are_answered(access: Access, host: str) -> None:
    access.check_host(host)


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "evil.example:8433", "localhost.evil.example", "127.0.0.1.evil:80"]
)
def test_other_names_are_not(access: Access, host: str | None) -> None:
    with pytest.raises(Denied) as denied:
        access.check_host(host)
    assert denied.value.status == 421


def test_a_change_needs_the_token_and_the_own_origin(access: Access) -> None:
    token = access.form_token("s")
    access.check_change("s", "localhost:1", "http://localhost:1", token)
    for origin, given in (
        ("http://evil.example", token),
        ("http://localhost:2", token),
        ("null", token),
        (None, token),
        ("http://localhost:1", ""),
    ):
        with pytest.raises(Denied) as denied:
            access.check_change("s", "localhost:1", origin, given)
        assert denied.value.status == 403
    with pytest.raises(Denied):
        access.check_change("s", "localhost:1", "http://localhost:1", access.form_token("another"))


def test_a_read_only_dashboard_changes_nothing(clock: Clock) -> None:
    access = Access(clock, needs_login=False, read_only=True)
    session = access.check_session(None)
    with pytest.raises(Denied, match="read-only"):
        access.check_change(session, "localhost", None, access.form_token(session))


def test_a_browser_is_logged_out_after_a_while(access: Access, clock: Clock) -> None:
    session = access.log_in(access.new_ticket())
    clock.now = SESSION_S - 1
    assert access.check_session(session)
    clock.now = SESSION_S
    with pytest.raises(Denied) as denied:
        access.check_session(session)
    assert denied.value.status == 401


def test_no_two_dashboards_have_the_same_place(clock: Clock) -> None:
    assert len(Access(clock).place) > 30
    assert Access(clock).place != Access(clock).place
    assert Access(clock, needs_login=False).place == ""
