import pytest
from hypothesis import given
from hypothesis import strategies as st

from starprof.hook.phases import (
    BACKWARD,
    BLOCKED,
    COMPILE,
    DATA_WAIT,
    EVAL,
    FORWARD,
    GC,
    H2D,
    NEXT,
    OPTIMIZER,
    PHASES,
    UNACCOUNTED,
    USER,
    PhaseMachine,
    spans_us,
)
from starprof.model.schema import STEP_SPANS


class Clock:
    def __init__(self):
        self.now = 1000

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def machine(clock):
    return PhaseMachine(clock)


def test_phase_numbers_are_the_places_of_their_columns():
    named = {"data_wait_us": DATA_WAIT, "blocked_us": BLOCKED, "user_us": USER, "unaccounted_us": UNACCOUNTED}
    assert {name: STEP_SPANS.index(name) for name in named} == named
    assert len(STEP_SPANS) == PHASES


def test_time_outside_all_spans_is_unaccounted(machine, clock):
    clock.now += 5
    _, spent = machine.cut()
    assert spent[UNACCOUNTED] == 5
    assert sum(spent) == 5


def test_a_span_gets_its_time_and_gives_back_to_the_one_around_it(machine, clock):
    forward = machine.enter(FORWARD)
    clock.now += 10
    gc = machine.enter(GC)
    clock.now += 3
    machine.leave(gc)
    clock.now += 2
    machine.leave(forward)
    clock.now += 1
    _, spent = machine.cut()
    assert (spent[FORWARD], spent[GC], spent[UNACCOUNTED]) == (12, 3, 1)


@pytest.mark.parametrize("outer", [DATA_WAIT, FORWARD, BACKWARD, OPTIMIZER, EVAL, USER])
def test_waiting_for_other_ranks_is_waiting_wherever_it_happens(outer):
    assert NEXT[outer][BLOCKED] == BLOCKED


@pytest.mark.parametrize(
    ("outer", "inner"), [(EVAL, FORWARD), (EVAL, DATA_WAIT), (DATA_WAIT, H2D), (FORWARD, FORWARD), (BACKWARD, FORWARD)]
)
def test_some_spans_belong_to_the_one_around_them(outer, inner):
    assert NEXT[outer][inner] == outer


def test_recomputing_a_forward_inside_the_backward_pass_is_backward(machine, clock):
    backward = machine.enter(BACKWARD)
    forward = machine.enter(FORWARD)
    clock.now += 7
    machine.leave(forward)
    machine.leave(backward)
    assert machine.cut()[1][BACKWARD] == 7


def test_after_the_last_gradient_the_backward_pass_waits(machine, clock):
    backward = machine.enter(BACKWARD)
    clock.now += 4
    assert machine.arrive(waits=True) == clock.now
    clock.now += 9
    machine.leave(backward)
    _, spent = machine.cut()
    assert (spent[BACKWARD], spent[BLOCKED]) == (4, 9)


def test_a_later_gradient_shows_that_the_earlier_one_was_not_the_last(machine, clock):
    backward = machine.enter(BACKWARD)
    for _ in range(3):
        clock.now += 4
        machine.arrive(waits=True)
    clock.now += 9
    machine.leave(backward)
    _, spent = machine.cut()
    assert (spent[BACKWARD], spent[BLOCKED]) == (12, 9)


def test_without_synchronisation_nothing_waits(machine, clock):
    backward = machine.enter(BACKWARD)
    machine.arrive(waits=False)
    clock.now += 9
    machine.leave(backward)
    assert machine.cut()[1][BLOCKED] == 0


def test_collecting_garbage_while_waiting_is_garbage_collection(machine, clock):
    backward = machine.enter(BACKWARD)
    machine.arrive(waits=True)
    gc = machine.enter(GC)
    clock.now += 5
    machine.leave(gc)
    clock.now += 6
    machine.leave(backward)
    _, spent = machine.cut()
    assert (spent[GC], spent[BLOCKED]) == (5, 6)


def test_a_span_across_a_boundary_is_divided_between_the_steps(machine, clock):
    token = machine.enter(COMPILE)
    clock.now += 2
    first = machine.cut()[1]
    clock.now += 3
    machine.leave(token)
    second = machine.cut()[1]
    assert (first[COMPILE], second[COMPILE]) == (2, 3)


_actions = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "arrive"]), st.integers(0, PHASES - 1), st.integers(0, 10**9)),
    max_size=60,
)


@given(_actions)
def test_spans_add_up_to_the_step_whatever_happens(actions):
    clock = Clock()
    machine = PhaseMachine(clock)
    start = clock.now
    tokens = []
    for action, phase, wait in actions:
        clock.now += wait
        if action == "enter":
            tokens.append(machine.enter(phase))
        elif action == "arrive":
            machine.arrive(waits=phase % 2 == 0)
        elif tokens:
            machine.leave(tokens.pop())
    now, spent = machine.cut()
    assert sum(spent) == now - start
    duration, spans = spans_us(now - start, spent)
    assert sum(spans) == duration
    assert min(spans) >= 0
