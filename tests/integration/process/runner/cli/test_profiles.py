from tests.integration.process.runner.cli.test_terminal import seen


def test_a_person_sees_tables() -> None:
    assert seen("profiles", "list").splitlines()[0].split() == ["NAME", "EXTENDS", "FOR"]
    head, *body = seen("profiles", "show", "cpu", "--explain").splitlines()
    assert head.split() == ["SWITCH", "VALUE", "FROM", "WHY"]
    assert any(line.startswith("optimizer") and "cpu.yaml:" in line for line in body)
    assert seen("profiles", "diff", "cpu", "cuda").splitlines()[0].split() == ["SWITCH", "cpu", "cuda"]
    assert seen("profiles", "diff", "cpu", "cpu") == "cpu and cpu switch the same\n"
