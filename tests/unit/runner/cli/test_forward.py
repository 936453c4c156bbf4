"""The ports of ``runner forward``."""

import click
import pytest

from runner.cli.forward import ports


@pytest.mark.parametrize(
    ("given", "found"),
    [("6006", (6006, 6006)), ("16006:6006", (6006, 16006)), ("0:8888", (8888, 0))],
)
def test_the_order_is_that_of_ssh(given: str, found: tuple[int, int]) -> None:
    assert ports(click.Context(click.Command("forward")), click.Argument(["port"]), given) == found


@pytest.mark.parametrize(
    "given", ["0", "0:0", "8888:0", "70000", "1:70000", "70000:1", "a:1", ":1", "1:", "1:2:3"]
)
def test_what_is_no_port_is_refused(given: str) -> None:
    with pytest.raises(click.BadParameter, match="LOCAL:REMOTE"):
        ports(click.Context(click.Command("forward")), click.Argument(["port"]), given)
