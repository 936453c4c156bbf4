from runner.adapters.gpu.topology import link_groups


def test_links_make_islands_also_over_others_and_switches() -> None:
    links = [("a", "b"), ("b", "c"), ("d", "switch"), ("e", "switch")]
    assert link_groups("nvlink", "abcdef", links) == {
        **dict.fromkeys("abc", "nvlink-a"),
        **dict.fromkeys("de", "nvlink-d"),
    }


def test_who_is_joined_to_nobody_is_on_no_island() -> None:
    assert link_groups("xgmi", "ab", [("a", "a"), ("b", "switch")]) == {}


def test_an_island_has_the_same_name_whatever_the_order_of_its_links() -> None:
    links = [("c", "b"), ("b", "a"), ("a", "c")]
    assert (
        link_groups("x", "abc", links) == link_groups("x", "abc", links[::-1]) == dict.fromkeys("abc", "x-a")
    )
