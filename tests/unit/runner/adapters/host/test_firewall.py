"""The firewall rules of a bridge as text, and what they are made of."""

from pathlib import Path

import pytest

from runner.adapters.host import firewall
from runner.adapters.host.firewall import (
    Firewall,
    FirewallProblem,
    FirewallRules,
    OpenAddress,
    bridges_to_outside,
    name_servers,
)

RULES = FirewallRules(
    table="runner_x",
    bridge="rnr-x",
    name_servers=("192.0.2.53", "2001:db8::53"),
    open=(OpenAddress("192.0.2.2", 5000),),
    closed=("10.0.0.0/8",),
    uplinks=("br0",),
)


def chain(text: str, name: str) -> list[str]:
    """Return the lines of one chain."""
    lines = text.splitlines()
    begin = lines.index(f"chain {name} {{")
    return lines[begin + 1 : lines.index("}", begin)]


def test_the_rules_replace_those_of_before_in_one_step() -> None:
    assert RULES.text().splitlines()[:3] == [
        "table inet runner_x",
        "delete table inet runner_x",
        "table inet runner_x {",
    ]


def test_exceptions_stand_before_what_is_closed() -> None:
    lines = chain(RULES.text(), "from_jobs")
    opened = [number for number, line in enumerate(lines) if line.endswith("accept")]
    closed = [number for number, line in enumerate(lines) if "reject" in line]
    assert max(opened) < min(closed)
    assert "ip daddr 192.0.2.53 udp dport 53 accept" in lines
    assert "ip6 daddr 2001:db8::53 tcp dport 53 accept" in lines
    assert "meta l4proto tcp ct original ip daddr 192.0.2.2 ct original proto-dst 5000 accept" in lines


@pytest.mark.parametrize("network", ["169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "10.0.0.0/8"])
def test_metadata_and_what_the_operator_closes_are_rejected(network: str) -> None:
    family = "ip6" if ":" in network else "ip"
    rule = f"{family} daddr {network} counter reject with icmpx admin-prohibited"
    assert rule in chain(RULES.text(), "from_jobs")


def test_the_last_rule_of_what_is_addressed_to_this_host_rejects_it() -> None:
    last = chain(RULES.text(), "input")[-1]
    assert last == 'iifname "rnr-x" counter reject with icmpx admin-prohibited'


def test_other_bridges_are_closed_but_those_to_the_outside() -> None:
    lines = chain(RULES.text(), "forward")
    reject = "counter reject with icmpx admin-prohibited"
    assert f'iifname "rnr-x" meta oifkind "bridge" oifname != "br0" {reject}' in lines
    assert 'iifname "rnr-x" oifname "rnr-x" counter drop' in lines


def test_name_servers_on_the_loopback_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    path.write_text(
        "search x\nnameserver 127.0.0.53\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nnameserver x\n"
    )
    assert name_servers((path, tmp_path / "absent", path)) == ("192.0.2.53",)


def test_a_bridge_with_a_route_through_a_gateway_leads_outside(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    routes.write_text(
        "Iface Destination Gateway\nbr0 00000000 010200C0\nbr1 0002000A 00000000\neth0 00000000 010200C0\n"
    )
    for name in ("br0", "br1"):
        (tmp_path / name / "bridge").mkdir(parents=True)
    assert bridges_to_outside(tmp_path, routes) == ("br0",)
    assert bridges_to_outside(tmp_path, tmp_path / "absent") == ()


def test_a_bridge_that_is_not_of_this_host_cannot_be_closed() -> None:
    with pytest.raises(FirewallProblem, match=r"the bridge rnr-x .* is not an interface of this host"):
        Firewall().enforce(RULES)


def test_a_missing_nft_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(firewall, "SYSTEM_PATH", str(tmp_path))
    with pytest.raises(FirewallProblem, match="install the package nftables"):
        firewall.nft("list", "tables")


def test_packets_between_containers_must_pass_the_rules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    switch = tmp_path / "bridge-nf-call-iptables"
    monkeypatch.setattr(firewall, "BRIDGE_FILTER", switch)
    with pytest.raises(FirewallProblem, match=r"is absent, .* modprobe br_netfilter"):
        Firewall.check_bridge_filter()
    switch.write_text("0\n")
    with pytest.raises(FirewallProblem, match="is 0, so packets between two containers pass no rules"):
        Firewall.check_bridge_filter()
    switch.write_text("1\n")
    Firewall.check_bridge_filter()
