"""Parts of an island: who belongs to it, its lines, and when a result counts."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from starprof.control.engine.island.handover import FollowerHandover, LeaderHandover
from starprof.control.engine.island.holding import Count
from starprof.control.engine.island.lines import Lobby, joined
from starprof.control.engine.island.mirror import Mirror
from starprof.control.engine.island.topology import Island, NoIslandsError, _found
from starprof.errors import TransportError
from starprof.sync.policies import Gradient
from starprof.sync.protocol.actions import PullState, Send
from starprof.sync.protocol.messages import Close, Failed

SECRET = b"only for this test"


def close_of(number, attempt=0, worker=0):
    return Close(1, number, attempt, (Gradient(worker, number, number),), (1.0,))


def test_a_rank_finds_its_island_in_the_mesh():
    rows = [[0, 1], [2, 3], [4, 5]]
    assert _found(rows, 3, 6) == Island((2, 3), 1, (0, 2, 4))
    island = _found([[0, 2], [1, 3]], 1, 4)
    assert (island.name, island.leads, island.followers) == (1, True, (3,))


@pytest.mark.parametrize("rows", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1], [2, 4]]])
def test_a_mesh_that_has_not_all_ranks_once_is_refused(rows):
    with pytest.raises(NoIslandsError, match="all ranks of the job"):
        _found(rows, 0, 4)


@pytest.fixture
def ends():
    """Both ends of a line."""
    store, made = dist.HashStore(), []
    lobby = Lobby(store, "here", "127.0.0.1", SECRET)
    thread = threading.Thread(target=lambda: made.append(joined(store, "here", 7, SECRET)))
    thread.start()
    made.append(lobby.gathered((7,))[7])
    thread.join(10)
    yield made
    for line in made:
        line.close()


def listening(line):
    words, ends, more = [], [], threading.Event()

    def heard(word):
        words.append(word)
        if word.get("last"):
            more.set()
        if word.get("impossible"):
            raise KeyError("no such thing")

    def ended(reason):
        ends.append(reason)
        more.set()

    line.start("test", heard, ended)
    return words, ends, more


def test_words_come_in_their_order_and_an_end_is_told(ends):
    one, other = ends
    words, told, more = listening(other)
    for number in range(50):
        one.say({"number": number, "last": number == 49})
    assert more.wait(20)
    assert [word["number"] for word in words] == list(range(50))
    more.clear()
    one.close()
    assert more.wait(20)
    assert told == ["it is gone"]
    other.say({"nobody": "hears it"})


def test_a_word_that_can_not_be_followed_ends_the_line_and_says_why(ends):
    one, other = ends
    _, told, more = listening(other)
    one.say({"impossible": True})
    assert more.wait(20)
    assert "KeyError" in told[0]
    assert other.ended


def test_who_does_not_know_the_secret_is_not_let_in(monkeypatch):
    monkeypatch.setattr("starprof.control.engine.island.lines.JOIN_S", 1.0)
    store, errors = dist.HashStore(), []
    lobby = Lobby(store, "here", "127.0.0.1", SECRET)

    def stranger():
        try:
            joined(store, "here", 7, b"a guess")
        except TransportError as error:
            errors.append(error)

    thread = threading.Thread(target=stranger)
    thread.start()
    with pytest.raises(TransportError, match="did not come: 7"):
        lobby.gathered((7,))
    thread.join(10)
    assert errors


def test_a_leader_that_never_comes_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("starprof.control.engine.island.lines.JOIN_S", 0.1)
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=1))
    with pytest.raises(TransportError, match="is not there"):
        joined(store, "here", 7, SECRET)


def test_a_result_counts_once_all_ranks_have_the_same_one():
    count = Count(3)
    assert not count.has(0, close_of(5))
    assert not count.has(4, close_of(5))
    assert not count.has(4, close_of(5))
    assert not count.has(8, close_of(5, attempt=1))
    assert not count.has(8, close_of(5, worker=2))
    assert count.has(8, close_of(5))


def test_a_follower_holds_what_its_leader_says_and_nothing_else():
    mirror = Mirror(2, (0, 2))
    assert mirror.can_deliver(5) is None
    mirror.keep(close_of(5))
    assert mirror.can_deliver(5) == close_of(5)
    assert not mirror.closed(close_of(5))
    assert mirror.closed(close_of(5, attempt=1)), "what was held is not what the round is made of"
    assert mirror.can_deliver(5) is None
    assert mirror.reduction_failed(5, 1) == [Send(Failed(2, 5, 1))]


class Line:
    """Between a leader's handover and a follower's; words come when `heard` is called, as they may be on their way."""

    def __init__(self):
        self.said, self.asked = [], []
        self.peers = self

    def pull(self, holder, version):
        self.asked.append((holder, version))

    def joined(self):
        """A leader and a follower that pull a state."""
        ends = []
        for kind in (LeaderHandover, FollowerHandover):
            ends.append(kind(None, None, None, None, threading.Condition()))
            ends[-1].peers = self
        leader, follower = ends
        for end in ends:
            end._changed.acquire()
        leader.followers, leader.order = 1, lambda what, **more: self.said.append((what, more))
        follower.tell = lambda version, wish: leader.part_came(3, version, wish)
        leader.pull(PullState(0, 5))
        return leader, follower

    def heard(self, follower):
        for what, more in self.said:
            assert what == "pull"
            follower.pull_too(PullState(more["holder"], more["version"]), more["wish"])
        self.said.clear()


def test_an_island_goes_on_with_parts_of_one_version_only():
    line = Line()
    leader, follower = line.joined()
    line.heard(follower)
    leader.came(0, 6, bytearray())
    assert not leader.here, "its follower has no part yet"
    follower.came(0, 7, bytearray())
    assert not leader.here, "the parts are of different versions"
    assert line.asked == [(0, 5)] * 3, "all is asked for again"
    follower.came(0, 9, bytearray())  # it has not heard yet that its part is void
    assert not leader.here
    line.heard(follower)
    follower.came(0, 8, bytearray())
    leader.came(0, 8, bytearray())
    assert leader.here


def test_a_part_stays_until_the_island_goes_on():
    line = Line()
    leader, follower = line.joined()
    line.heard(follower)
    leader.came(0, 6, bytearray())
    leader.came(0, 7, bytearray())
    follower.came(0, 6, bytearray())
    follower.came(0, 7, bytearray())
    assert leader.here
    assert leader._come[0] == follower._come[0] == 6


def test_followers_that_step_on_their_own_are_asked_for_nothing():
    leader, _ = Line().joined()
    leader._own = type("Made", (), {"made": 0})
    leader.asked(2, 4)
    assert leader.due
    leader.listening = False
    assert not leader.due
