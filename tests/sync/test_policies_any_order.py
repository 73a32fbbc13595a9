"""Every mode under any order of arrivals, with workers that leave, come anew and come back in the middle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_policies import policy_of

from starprof.sync.policies import MODES, Arrived, Gradient, Joined, Left, Predicted, Scored, Woken, create

every_mode = pytest.mark.parametrize("name", list(MODES))
MOVES = st.lists(st.integers(0, 999), min_size=60, max_size=90)


class Workers:
    """Whoever computes may be the next to arrive; the account of every gradient is kept."""

    def __init__(self, policy):
        self.policy = policy
        self.computing = dict.fromkeys(policy.members, policy.version)
        self.numbers = dict.fromkeys(policy.members, 0)
        self.at_s = 0.0
        self.wake_at_s = None
        self.handed_in, self.updates, self.averagings = [], [], 0
        self.used, self.dropped, self.lost = [], [], []

    def tell(self, event):
        decision = self.policy.decide(event)
        self.updates += decision.updates
        self.averagings += len(decision.average)
        self.used += [g for update in decision.updates for g in update.gradients] + list(decision.step_locally)
        (self.lost if isinstance(event, Left) else self.dropped).extend(decision.dropped)
        self.wake_at_s = decision.wake_at_s
        for update in decision.updates:
            bound = self.policy.max_staleness
            assert min(update.staleness) >= 0
            assert bound is None or max(update.staleness) <= bound, "staler than the mode allows"
        for worker in decision.release:
            if worker in self.policy.members:
                assert worker not in self.computing, "released twice"
                self.computing[worker] = self.policy.version
        for gradient in decision.score:
            self.tell(Scored(gradient, 1.0, self.at_s))

    def arrives(self, worker):
        self.at_s += 1.0
        gradient = Gradient(worker, self.numbers[worker], self.computing.pop(worker))
        self.numbers[worker] += 1
        self.handed_in.append(gradient)
        before, short_of = len(self.updates), self.policy.short_of
        self.tell(Arrived(gradient, self.at_s))
        assert short_of <= 1 or len(self.updates) == before, "a round closes before it can"

    def goes_on(self, move):
        """Somebody arrives, if only after a timer: never does everybody wait."""
        if not self.computing:
            assert self.wake_at_s is not None, "everybody waits, for nothing"
            self.at_s = max(self.at_s, self.wake_at_s)
            self.tell(Woken(self.at_s))
        assert self.computing, "everybody waits"
        ready = sorted(self.computing)
        self.arrives(ready[move % len(ready)])

    def changes(self, move):
        """Somebody leaves, comes, or is predicted to be of another speed."""
        members = self.policy.members
        if move % 3 == 0 and len(members) > 1:
            leaver = members[move // 3 % len(members)]
            self.computing.pop(leaver, None)
            self.tell(Left(leaver, self.at_s))
        elif move % 3 == 1:
            newcomer = next(w for w in range(99) if w not in members)
            self.numbers[newcomer] = 0 if newcomer not in self.numbers else self.numbers[newcomer] + 1
            self.tell(Joined(newcomer, self.at_s))
        else:
            self.tell(Predicted({w: 1.0 + (move * (w + 1)) % 4 for w in members}, self.at_s))


@every_mode
@given(workers=st.integers(1, 5), moves=MOVES)
@settings(max_examples=25, deadline=None)
def test_any_order_with_changes_in_the_middle_keeps_every_promise(name, workers, moves):
    world = Workers(policy_of(name, workers))
    for move in moves:
        if move % 7 == 0:
            world.changes(move // 7)
        else:
            world.goes_on(move // 7)
    policy = world.policy
    assert len(set(world.used)) == len(world.used), "applied twice"
    assert not set(world.used) & {*world.dropped, *world.lost}, "applied, and told to be gone"
    assert policy.drops or not world.dropped, "lost, in a mode that promises not to"
    wound_up = policy.wind_up()
    used = {*world.used, *(g for update in wound_up.updates for g in update.gradients), *policy.waiting.values()}
    unaccounted = set(world.handed_in) - used - {*world.dropped, *wound_up.dropped, *world.lost}
    assert not unaccounted, "neither applied nor waiting nor told to be gone"


@every_mode
@given(workers=st.integers(1, 5), moves=MOVES)
@settings(max_examples=10, deadline=None)
def test_whatever_has_happened_a_few_gradients_of_everybody_make_progress(name, workers, moves):
    world = Workers(policy_of(name, workers))
    for move in moves:
        world.changes(move // 7) if move % 7 == 0 else world.goes_on(move // 7)
    before = len(world.updates) + world.averagings
    for _ in range(12):  # more than any period, batch or lead of these modes
        for worker in sorted(world.computing):
            if worker in world.computing:
                world.arrives(worker)
        if not world.computing:
            world.at_s = max(world.at_s, world.wake_at_s or 0.0)
            world.tell(Woken(world.at_s))
    assert len(world.updates) + world.averagings > before


@pytest.mark.parametrize(("name", "options"), [("static-x", {"x": 2}), ("ring-x", {"x": 2})])
def test_who_was_let_go_on_old_parameters_is_stale_also_when_the_mode_has_become_synchronous(name, options):
    policy = create(name, range(3), options)
    for gradient in (Gradient(0, 0, 0), Gradient(1, 0, 0)):
        policy.decide(Arrived(gradient))
    policy.decide(Left(0))
    policy.decide(Arrived(Gradient(1, 1, 1)))
    decision = policy.decide(Arrived(Gradient(2, 0, 0)))
    assert max(decision.updates[0].staleness) == 1
    assert policy.max_staleness is None


def test_whoever_comes_back_to_ssp_may_lead_once_more_and_the_bound_says_so():
    policy = create("ssp", range(2), {"s": 0})
    for back in range(4):
        if back:
            policy.decide(Left(0))
            policy.decide(Joined(0))
        policy.decide(Arrived(Gradient(0, back, policy.version)))
    decision = policy.decide(Arrived(Gradient(1, 0, 0)))
    assert decision.updates[0].staleness == (4,)
    assert policy.max_staleness == 4
