"""Every schedule of small jobs, and every schedule of larger ones that is near to the plain one."""

import pytest
from explore import explore, in_rounds


def test_a_branch_goes_its_own_way_and_equal_states_have_equal_marks():
    world = in_rounds(3, 2, "m-sync", {"m": 2}, [("cut", None)])
    twin, mark = world.branch(), world.mark()
    assert twin.mark() == mark
    for _ in range(5):
        twin.happen(twin.enabled()[0])
    assert world.mark() == mark
    assert twin.mark() != mark


@pytest.mark.parametrize("mode", ["ssgd", "asgd"])
def test_every_schedule_of_two_ranks(mode):
    found = explore(in_rounds(2, 2, mode, {}, []), 20_000)
    assert found.complete
    assert found.ends > 0


def test_every_schedule_of_two_ranks_with_a_crash():
    found = explore(in_rounds(2, 1, "ssgd", {}, [("crash", None)]), 20_000)
    assert found.complete
    assert found.ends > 0


@pytest.mark.parametrize("meetings", [False, True])
@pytest.mark.parametrize(
    ("mode", "options"), [("m-sync", {"m": 2}), ("asgd", {}), ("ssp", {"s": 1}), ("local-sgd", {"period": 2})]
)
def test_every_schedule_next_to_the_plain_one_of_three_ranks_with_a_crash_or_a_cut(mode, options, meetings):
    world = in_rounds(3, 2, mode, options, [("cut", None), ("crash", None)], meetings)
    found = explore(world, 100_000, deviations=1)
    assert found.complete
    assert found.ends > 0


def test_every_schedule_near_the_plain_one_of_two_ranks_with_a_crash_and_a_cut():
    found = explore(in_rounds(2, 2, "asgd", {}, [("cut", None), ("crash", None)]), 100_000, deviations=2)
    assert found.complete
    assert found.ends > 0
