"""Where a parameter server goes, how it is divided, and how it is moved away from an overloaded node."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.decision.resources import Amount, Room, ServerLoad, place_server, relocate

GB = 1e9


def room(name: str, cores: float = 0.0, rate: float = 0.0) -> Room:
    return Room(name, Amount(10.0, GB), Amount(cores, rate))


def load(*sizes: float, workers: int = 4, iteration_s: float = 1.0, cores: float = 1.0) -> ServerLoad:
    return ServerLoad({f"p{at}": size for at, size in enumerate(sizes)}, workers, iteration_s, cores)


def share(rooms: list[Room], one: ServerLoad, placed: dict[str, str]) -> float:
    """The fullest node that has a part of the server."""
    held = dict.fromkeys((r.node for r in rooms), 0.0)
    for parameter, node in placed.items():
        held[node] += one.parameters[parameter]
    return max((r.used + one.of(held[r.node])).share_of(r.capacity) for r in rooms if held[r.node] > 0.0)


def test_the_node_with_the_least_of_its_larger_share_is_chosen():
    rooms = [room("cpu", cores=7.0), room("wire", rate=0.6 * GB), room("best", cores=4.0, rate=0.4 * GB)]
    plan = place_server(rooms, load(0.01 * GB))
    assert plan.shards == {"best": ("p0",)}
    # Four workers push and pull 10 MB once a second: 80 MB/s; one core of ten.
    assert plan.share == pytest.approx(max(5.0 / 10.0, 0.48))
    assert plan.runner_up == "wire"
    assert "80 MB/s" in plan.steps[0]


def test_above_the_limit_it_is_sharded_the_largest_parameter_first():
    plan = place_server([room("a"), room("b"), room("c")], load(0.09 * GB, 0.05 * GB, 0.04 * GB))
    assert plan.shards == {"a": ("p0",), "b": ("p1", "p2")}
    assert plan.share == pytest.approx(0.72)
    assert not plan.refused


def test_a_parameter_that_no_node_can_take_is_named():
    plan = place_server([room("a"), room("b"), room("c")], load(0.2 * GB, 0.01 * GB))
    assert plan.shards == {}
    assert "parameter p0 has 200 MB" in plan.refused
    assert "at 90 %" in plan.refused


def test_too_little_room_altogether_is_said():
    plan = place_server([room("a"), room("b")], load(*[0.1 * GB] * 4))
    assert "all 2 nodes together have room for 225 MB of the 400 MB" in plan.refused


def test_a_node_without_an_interface_is_no_place():
    blind = Room("blind", Amount(64.0, 0.0), Amount())
    assert place_server([blind, room("a")], load(0.01 * GB)).shards == {"a": ("p0",)}


@pytest.mark.parametrize("wrong", [{"iteration_s": 0.0}, {"iteration_s": math.nan}, {"workers": 0}])
def test_a_load_out_of_range_is_an_error(wrong: dict):
    with pytest.raises(ValueError, match="server needs"):
        load(GB, **wrong)


rooms_ = st.lists(st.tuples(st.floats(0.0, 8.0), st.floats(0.0, 0.8 * GB)), min_size=1, max_size=3).map(
    lambda used: [room(f"n{at}", *one) for at, one in enumerate(used)]
)
sizes_ = st.lists(st.floats(1e6, 0.12 * GB), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(rooms_, sizes_, st.floats(0.0, 10.0))
def test_against_every_division(rooms, sizes, cores):
    one = load(*sizes, cores=cores)
    plan = place_server(rooms, one)
    names = [r.node for r in rooms]
    every = [
        share(rooms, one, dict(zip(one.parameters, places, strict=True)))
        for places in itertools.product(names, repeat=len(sizes))
    ]
    if plan.refused:
        return
    placed = {parameter: node for node, held in plan.shards.items() for parameter in held}
    assert set(placed) == set(one.parameters)
    assert plan.share == pytest.approx(share(rooms, one, placed))
    assert plan.share <= 0.9 + 1e-9
    assert plan.share <= plan.bound + 1e-6
    assert min(every) <= plan.share + 1e-9
    whole = min(share(rooms, one, dict.fromkeys(one.parameters, name)) for name in names)
    if whole <= 0.9:
        assert plan.share == pytest.approx(whole)  # one node where one is enough, and the best of them


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), sizes_)
def test_a_refusal_on_alike_empty_nodes_is_close_to_right(count, sizes):
    """The largest first is never worse than 4/3 of the best division on alike nodes."""
    rooms = [room(f"n{at}") for at in range(count)]
    one = load(*sizes)
    if place_server(rooms, one).refused:
        best = min(
            share(rooms, one, dict(zip(one.parameters, places, strict=True)))
            for places in itertools.product([r.node for r in rooms], repeat=len(sizes))
        )
        assert best * 4.0 / 3.0 > 0.9


def test_a_server_that_fits_stays():
    plan = relocate([room("a"), room("b")], load(0.05 * GB, 0.05 * GB), {"p0": "a", "p1": "a"})
    assert (plan.moves, plan.refused) == ((), "")


def test_as_few_bytes_as_possible_leave_an_overloaded_node():
    rooms = [room("a", rate=0.4 * GB), room("b", rate=0.1 * GB), room("c", rate=0.6 * GB)]
    one = load(0.05 * GB, 0.02 * GB, 0.01 * GB)  # 640 MB/s; 140 MB/s too many, which is 17.5 MB of the model
    plan = relocate(rooms, one, dict.fromkeys(one.parameters, "a"))
    (move,) = plan.moves
    assert (move.parameter, move.source, move.target) == ("p1", "a", "b")
    assert move.seconds == pytest.approx(0.02 * GB / (0.1 * GB))  # the overloaded source keeps a tenth for it
    assert plan.shares["a"] == pytest.approx(0.88)


def test_a_node_that_others_overload_gives_up_its_whole_shard():
    one = load(0.01 * GB, 0.01 * GB)
    plan = relocate([room("a", rate=0.95 * GB), room("b")], one, dict.fromkeys(one.parameters, "a"))
    assert {move.parameter for move in plan.moves} == {"p0", "p1"}


def test_where_no_other_node_has_room_it_is_refused():
    one = load(0.05 * GB, 0.05 * GB)
    plan = relocate([room("a", rate=0.5 * GB), room("b", rate=0.85 * GB)], one, dict.fromkeys(one.parameters, "a"))
    assert plan.moves == ()
    assert "a is at 130 %" in plan.refused


def test_a_parameter_without_a_node_is_an_error():
    with pytest.raises(ValueError, match="every parameter"):
        relocate([room("a")], load(GB), {"p0": "elsewhere"})


@settings(max_examples=60, deadline=None)
@given(st.floats(0.0, 0.9 * GB), sizes_)
def test_at_most_twice_the_least_bytes_are_moved(used, sizes):
    """With a second node that has room for everything."""
    rooms = [room("a", rate=used), Room("b", Amount(1000.0, 100.0 * GB), Amount())]
    one = load(*sizes)
    plan = relocate(rooms, one, dict.fromkeys(one.parameters, "a"))
    assert not plan.refused
    subsets = itertools.chain.from_iterable(
        itertools.combinations(one.parameters, count) for count in range(len(sizes) + 1)
    )

    def kept_share(gone: tuple[str, ...]) -> float:
        kept = one.model_bytes - sum(one.parameters[p] for p in gone)
        return (rooms[0].used + one.of(max(kept, 0.0))).share_of(rooms[0].capacity)

    least = min(sum(one.parameters[p] for p in gone) for gone in subsets if kept_share(gone) <= 0.9 + 1e-9)
    assert sum(move.size_bytes for move in plan.moves) <= 2.0 * least + 1.0
    assert kept_share(tuple(move.parameter for move in plan.moves)) <= 0.9 + 1e-9
