from bench.process import TICKS_PER_S, cpu_seconds, resident_mib

STAT = "4242 (a name) with) spaces) S 1 4242 4242 0 -1 4194560 9999 0 12 0 300 200 7 8 20 0 9 0 100 1 2 3"


def test_processor_time_is_user_and_system_time_whatever_the_name() -> None:
    assert cpu_seconds(STAT) == 500 / TICKS_PER_S


def test_resident_memory_is_read_in_mebibytes() -> None:
    assert resident_mib("Name:\tpython3\nVmHWM:\t  999999 kB\nVmRSS:\t   73728 kB\n") == 72.0


def test_a_process_without_memory_of_its_own_has_none() -> None:
    assert resident_mib("Name:\tkthreadd\n") == 0.0
