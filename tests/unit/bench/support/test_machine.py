import platform
from dataclasses import replace

from bench.support.machine import Machine, cpu_model

MACHINE = Machine("Intel Xeon E5-2680 v4 @ 2.40GHz", 2, 23.4, "6.1.0", "20.10.24", "3.11.2", 0.31)


def test_the_processor_is_named_without_its_trade_marks() -> None:
    text = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz\nmodel name\t: other\n"
    assert cpu_model(text) == "Intel Xeon E5-2680 v4 @ 2.40GHz"


def test_a_processor_without_a_name_is_called_by_its_architecture() -> None:
    assert cpu_model("processor\t: 0\nBogoMIPS\t: 50.00\n") == platform.machine()


def test_results_are_named_after_the_kind_of_machine() -> None:
    assert MACHINE.slug == "intel-xeon-e5-2680-v4-2-40ghz-2-cores"
    assert replace(MACHINE, load=3.0, kernel="6.2").slug == MACHINE.slug


def test_the_text_names_all_that_decides_a_number() -> None:
    assert MACHINE.text() == (
        "Intel Xeon E5-2680 v4 @ 2.40GHz, 2 cores, 23 GiB; Linux 6.1.0; engine 20.10.24;"
        " Python 3.11.2; load before: 0.3"
    )


def test_nothing_of_it_says_whose_machine_it_is() -> None:
    assert platform.node() not in {str(value) for value in MACHINE.as_json().values()}
    assert set(MACHINE.as_json()) == {"cpu", "cores", "memory_gib", "kernel", "engine", "python", "load"}
