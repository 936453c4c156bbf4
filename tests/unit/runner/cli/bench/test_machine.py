import platform

from runner.cli.bench.machine import cpu_model, describe_machine, one_line


def test_a_processor_has_the_name_that_people_call_it_by() -> None:
    assert cpu_model("model name\t: Intel(R) Core(TM) i7 CPU @ 3 GHz\n") == "Intel Core i7 @ 3 GHz"
    assert cpu_model("") == platform.machine()


def test_a_machine_is_named_by_what_it_is_made_of_and_by_no_host_name() -> None:
    found = describe_machine()
    assert f"{found['cores']} cores" in one_line(found)
    assert platform.node() not in one_line(found).split()
