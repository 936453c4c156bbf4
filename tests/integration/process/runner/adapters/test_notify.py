"""Three ways to tell somebody, with a real server, a stand-in for sendmail and real programs."""

import email
import email.policy
import os
import select
import struct
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path

import pytest

from runner.adapters import notify
from runner.adapters.host.process_status import open_process
from runner.adapters.notify import draw_curve, run_command, sender_for
from runner.core.notification import ReportedCurve
from runner.core.ports.notifications import RetryLater, Undelivered
from runner.files.settings.notify import NotificationRule
from tests.fakes.patience import patience
from tests.unit.runner.adapters.test_notify import NOTICE, ORIGIN, program, rule

# --- mails


def test_a_mail_goes_through_sendmail(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sendmail = program(tmp_path, f'echo "$*" > {sent}.argv; cat > {sent}')
    sender_for(rule(mail="ops@example.org"), ORIGIN, sendmail=sendmail)(NOTICE)
    assert Path(f"{sent}.argv").read_text() == "-i -- ops@example.org\n"
    message = email.message_from_bytes(sent.read_bytes(), policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    assert (message["To"], message["Auto-Submitted"]) == ("ops@example.org", "auto-generated")
    assert message["Subject"] == "[runner] nächtlich (7) failed"
    assert "attempt 2 ended: oom (exit 137)" in message.get_content()
    assert "runner show 7" in message.get_content()


def test_a_mail_to_the_address_that_a_job_names_is_tried_once(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sendmail = program(tmp_path, f"cat > {sent}; exit 1")
    own = NotificationRule.model_validate({"on": "finished", "own": ["@lab.example"]})
    send = sender_for(own, ORIGIN, sendmail=sendmail)
    send(replace(NOTICE, labels={}))
    assert not sent.exists()
    with pytest.raises(Undelivered) as told:
        send(replace(NOTICE, labels={"notify": "ann@lab.example"}))
    assert told.value.again is RetryLater.NEVER  # others wait behind it
    assert "To: ann@lab.example" in sent.read_text()


@pytest.mark.parametrize("name", ["loss", "$\\frac{$ <b>\x1b[31m"])
def test_a_mail_about_an_end_has_the_loss_as_a_picture(tmp_path: Path, name: str) -> None:
    sent = tmp_path / "sent"
    send = sender_for(rule(mail="root"), ORIGIN, sendmail=program(tmp_path, f"cat > {sent}"))
    curve = ReportedCurve(name, tuple((step, 1 / (step + 1)) for step in range(100)))
    send(replace(NOTICE, curve=curve))
    message = email.message_from_bytes(sent.read_bytes(), policy=email.policy.default)
    [picture] = [part for part in message.walk() if part.get_content_type() == "image/png"]
    assert isinstance(picture, EmailMessage)
    width, height = struct.unpack(">II", picture.get_content()[16:24])
    assert (width, height) == (700, 350)
    assert picture.get_filename() == "curve.png"
    for other in (NOTICE, replace(NOTICE, curve=ReportedCurve(name, ((1, 2.0),)))):
        send(other)
        assert b"image/png" not in sent.read_bytes()
    send(replace(NOTICE, kind="placed", state="starting", outcome=None, curve=curve))
    assert b"image/png" not in sent.read_bytes()


def test_a_picture_that_does_not_come_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    curve = ReportedCurve("loss", ((1, 2.0), (2, 1.0)))
    assert draw_curve(curve, limit_s=0.01) is None
    monkeypatch.setattr(notify, "PICTURE", tmp_path / "absent.py")
    assert draw_curve(curve) is None


def test_a_machine_without_sendmail_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(Undelivered, match="absent: No such file") as failed:
        sender_for(rule(mail="root"), ORIGIN, sendmail=str(tmp_path / "absent"))(NOTICE)
    assert failed.value.again is RetryLater.SOME


# --- commands


def test_a_command_gets_the_notice_as_one_line(tmp_path: Path) -> None:
    told = tmp_path / "a b"
    sender_for(rule(command=["/bin/sh", "-c", 'cat > "$0"', str(told)]), ORIGIN)(NOTICE)
    assert told.read_text() == NOTICE.to_json("abcd", "gpu1") + "\n"


def test_one_that_fails_is_said_to_have_failed() -> None:
    with pytest.raises(Undelivered, match="/bin/false: left with 1"):
        run_command(("/bin/false",), b"")


def test_one_that_does_not_read_may_still_be_right(tmp_path: Path) -> None:
    deaf = program(tmp_path, f"exec <&-; touch {tmp_path / 'done'}")
    run_command((deaf,), b"x" * 10_000_000)
    assert (tmp_path / "done").exists()


def test_one_that_does_not_end_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    stays = program(tmp_path, f"sleep 1000 & echo $! > {pids}; wait")
    limit_s = 0.3
    while not (pids.exists() and pids.read_text()):  # it may take longer than that to start something
        with pytest.raises(Undelivered, match=r"not done after "):
            run_command((stays,), b"", limit_s=limit_s)
        limit_s *= 2
    assert until_gone(int(pids.read_text()))


def until_gone(pid: int) -> bool:
    """Wait until a process has ended, whether somebody has taken note of it or not."""
    try:
        descriptor = open_process(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor) as ended:
        return bool(select.select([ended], [], [], patience())[0])
