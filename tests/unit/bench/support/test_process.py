import os

from bench.support.process import TICKS_PER_S, HeldMemory, cpu_seconds, held_by_tree, parse_held, resident_mib

STAT = "4242 (a name) with) spaces) S 1 4242 4242 0 -1 4194560 9999 0 12 0 300 200 7 8 20 0 9 0 100 1 2 3"


def test_processor_time_is_user_and_system_time_whatever_the_name() -> None:
    assert cpu_seconds(STAT) == 500 / TICKS_PER_S


def test_resident_memory_is_read_in_mebibytes() -> None:
    assert resident_mib("Name:\tpython3\nVmHWM:\t  999999 kB\nVmRSS:\t   73728 kB\n") == 72.0


def test_a_process_without_memory_of_its_own_has_none() -> None:
    assert resident_mib("Name:\tkthreadd\n") == 0.0


ROLLUP = "Rss: 9216 kB\nPss: 8192 kB\nPss_Anon: 2048 kB\nPss_File: 5120 kB\nPss_Shmem: 1024 kB\n"
STATUS = "VmRSS:\t9216 kB\nRssAnon:\t4096 kB\nRssFile:\t3072 kB\nRssShmem:\t2048 kB\n"


def test_memory_of_files_is_not_held_and_a_shared_page_is_in_part_distinct() -> None:
    assert parse_held(ROLLUP, STATUS) == HeldMemory(resident=6.0, distinct=3.0)


def test_a_process_that_has_gone_holds_nothing() -> None:
    assert parse_held("", "") == HeldMemory(0.0, 0.0)


def test_this_process_holds_something_and_shares_no_more_than_it_has() -> None:
    here = held_by_tree(os.getpid())
    assert here.distinct > 0
    assert here.resident > 0
