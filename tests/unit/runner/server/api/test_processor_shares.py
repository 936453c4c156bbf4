"""Who has used much processor time gives way to who has not, and to nobody else."""

from threading import Thread

from runner.server.api.processor_shares import (
    BURST_S,
    FORGET_S,
    LONGEST_BACKLOG_S,
    MOST_PEOPLE,
    PRESENT_S,
    SHARE,
    ProcessorShares,
)

HEAVY, LIGHT, OPERATOR = 1001, 1002, 0


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def made() -> tuple[ProcessorShares, Clock]:
    clock = Clock()
    return ProcessorShares(clock, privileged={OPERATOR}), clock


def test_nobody_gives_way_while_nobody_else_asks() -> None:
    shares, _ = made()
    shares.ask(HEAVY)
    shares.charge(HEAVY, 100 * BURST_S)
    assert not shares.gives_way(HEAVY)
    assert shares.wait_s(HEAVY) == 0.0


def test_who_used_much_gives_way_to_who_used_less_as_long_as_they_ask() -> None:
    shares, clock = made()
    shares.charge(HEAVY, 2 * BURST_S)
    shares.ask(LIGHT)
    assert shares.gives_way(HEAVY)
    assert not shares.gives_way(LIGHT)
    clock.now_s += PRESENT_S + 0.1
    assert not shares.gives_way(HEAVY)


def test_a_burst_is_free_and_use_is_forgotten() -> None:
    shares, clock = made()
    shares.charge(HEAVY, 0.9 * BURST_S)
    shares.ask(LIGHT)
    assert not shares.gives_way(HEAVY)
    shares.charge(HEAVY, BURST_S)
    assert shares.gives_way(HEAVY)
    clock.now_s += FORGET_S
    shares.ask(LIGHT)
    assert not shares.gives_way(HEAVY)


def test_turns_that_give_way_use_their_share_of_a_processor_together() -> None:
    shares, clock = made()
    also_heavy, used_s = 1003, 0.0
    for person in (HEAVY, also_heavy):
        shares.charge(person, 10 * BURST_S)
    began_s = clock.now_s
    for number in range(400):
        person = (HEAVY, also_heavy)[number % 2]
        shares.ask(LIGHT)
        clock.now_s += shares.wait_s(person) + 0.005
        shares.charge(person, 0.005)
        used_s += 0.005
    assert 0.8 * SHARE <= used_s / (clock.now_s - began_s) <= 1.05 * SHARE


def test_a_long_piece_of_work_keeps_the_next_turn_waiting_for_a_limited_time() -> None:
    shares, _ = made()
    shares.ask(LIGHT)
    shares.charge(HEAVY, 1000 * BURST_S)
    assert shares.wait_s(HEAVY) == LONGEST_BACKLOG_S


def test_an_operator_never_gives_way_and_others_give_way_to_one() -> None:
    shares, _ = made()
    shares.charge(OPERATOR, 3 * BURST_S)
    shares.ask(LIGHT)
    assert not shares.gives_way(OPERATOR)
    shares.ask(OPERATOR)
    shares.charge(HEAVY, 4 * BURST_S)
    assert shares.gives_way(HEAVY)


def test_thousands_of_people_are_not_remembered_but_who_uses_most_is() -> None:
    shares, _ = made()
    shares.charge(HEAVY, 2 * BURST_S)
    for person in range(2000, 2000 + 2 * MOST_PEOPLE):
        shares.ask(person)
    assert len(shares._uses) <= MOST_PEOPLE
    assert shares.gives_way(HEAVY)


def test_charges_of_many_threads_are_all_counted() -> None:
    shares, _ = made()

    def charge() -> None:
        for _ in range(500):
            shares.charge(HEAVY, 0.001)

    threads = [Thread(target=charge) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert abs(shares._uses[HEAVY].seconds - 2.0) < 1e-6
