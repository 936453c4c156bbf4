"""The ports of ``runner forward``."""

import click
import pytest

from runner.cli.forward import ports


@pytest.mark.parametrize(
    ("given", "found", "told"),
    [
        ("6006", (6006, 6006), ""),
        ("16006:6006", (6006, 16006), ""),
        ("0:8888", (8888, 0), ""),
        ("8888:0", (8888, 0), "write LOCAL:REMOTE, 0:8888"),
    ],
)
def test_the_order_is_that_of_ssh_and_the_old_one_is_taken_where_it_is_meant(
    given: str,
    found: tuple[int, int],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ports(click.Context(click.Command("forward")), click.Argument(["port"]), given) == found
    said = capsys.readouterr().err
    assert told in said if told else not said


@pytest.mark.parametrize("given", ["0", "0:0", "70000", "1:70000", "70000:1", "a:1", ":1", "1:", "1:2:3"])
def test_what_is_no_port_is_refused(given: str) -> None:
    with pytest.raises(click.BadParameter, match="LOCAL:REMOTE"):
        ports(click.Context(click.Command("forward")), click.Argument(["port"]), given)
