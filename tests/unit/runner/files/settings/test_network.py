"""The section ``network`` of the settings."""

from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.files.settings.model import Settings, load_settings
from runner.files.settings.network import NetworkSettings, split_open


def read(tmp_path: Path, text: str) -> NetworkSettings:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return load_settings(path).network


def test_the_default_is_outbound_in_ones_own_daemon_and_none_in_that_of_all_users() -> None:
    network = NetworkSettings()
    assert network.default_for("normal", shared=False) == "outbound"
    assert network.default_for("normal", shared=True) == "none"
    assert network.admits_everybody("normal", shared=False)
    assert not network.admits_everybody("normal", shared=True)
    assert not network.may_be_used


def test_a_class_may_have_a_default_and_a_right_of_its_own(tmp_path: Path) -> None:
    network = read(
        tmp_path, "network: {class_defaults: {interactive: outbound}, outbound: {classes: [batch]}}\n"
    )
    assert network.default_for("interactive", shared=True) == "outbound"
    assert network.default_for("batch", shared=True) == "none"
    assert network.admits_everybody("batch", shared=True)
    assert not network.admits_everybody("interactive", shared=True)
    assert network.may_be_used


def test_a_name_stands_for_an_engine_network_of_every_job(tmp_path: Path) -> None:
    network = read(tmp_path, "network: lab\n")
    assert (network.engine_network, network.default_for("normal", shared=True)) == ("lab", "outbound")
    assert read(tmp_path, "network: null\n") == NetworkSettings()


def test_names_that_do_not_exist_here_are_told() -> None:
    network = NetworkSettings.model_validate(
        {
            "class_defaults": {"x": "none"},
            "outbound": {"users": ["no-such-user"], "groups": ["no-such-group"], "classes": ["y"]},
        }
    )
    assert list(Settings(network=network).strangers()) == [
        'network.class_defaults: there is no class "x"',
        'network.outbound.users: this machine has no user "no-such-user"',
        'network.outbound.groups: this machine has no group "no-such-group"',
        'network.outbound.classes: there is no class "y"',
    ]
    assert list(NetworkSettings().strangers(frozenset())) == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [("192.0.2.2:5000", ("192.0.2.2", 5000, "tcp")), ("[2001:db8::2]:53/udp", ("2001:db8::2", 53, "udp"))],
)
def test_an_open_service_has_address_port_and_protocol(text: str, parts: tuple[str, int, str]) -> None:
    assert split_open(NetworkSettings(open=(text,)).open[0]) == parts
    with pytest.raises(ValueError, match="nonsense"):
        split_open("nonsense")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{default: all}", '1:20: network.default: must be one of "none" or "outbound", or null, not "all"'),
        ("{open: [host]}", "network.open[0]: must be ADDRESS:PORT such as 192.0.2.2:5000"),
        ("{open: ['999.1.1.1:80']}", 'network.open[0]: "999.1.1.1" is not an IP address'),
        ("{open: ['192.0.2.2:0']}", "network.open[0]: there is no port 0"),
        ("{closed: [10.0.0.1/8]}", "network.closed[0]: must be an address range such as 10.0.0.0/8"),
        ("{dns: [ns.example]}", "network.dns[0]: must be an IP address such as 192.0.2.53"),
        ("{outbound: {user: [ann]}}", 'network.outbound.user: unknown field; did you mean "users"?'),
        ("7", "1:10: network: must be a mapping, not 7"),
    ],
)
def test_mistakes_are_named_at_their_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, f"network: {text}\n")
    assert words in str(refused.value)
