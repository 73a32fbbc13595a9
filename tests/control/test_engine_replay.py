"""A run of real engines, recorded, and what its policy says when it is told the same once more.

Where ranks step on their own (local-sgd, hierarchical) the policy is asked about states, not gradients: not replayed.
"""

import pytest
from engine_world import train
from test_engine import _one_thread, ranks, slow_last, switching  # noqa: F401 - fixtures

from starprof.control.journal import ControlJournal
from starprof.model.valuelists import contributors_of, from_listed_values
from starprof.spool.layout import Spool
from starprof.store.ingest import fold
from starprof.store.runfile import RunFile
from starprof.sync.policies import Policy, create

REPLAYED = [
    ("m-sync", {"m": 3}),
    ("m-sync-fold", {"m": 3}),
    ("static-x", {"x": 2}),
    ("asgd", {}),
    ("ring-x", {"x": 3}),
    ("deadline", {"after_s": 0.004}),
    ("rennala", {"batch": 3}),
    ("ssp", {"s": 3}),
]
COLUMNS = "version, contributors, per_contributor, numbers, weights, staleness"


@pytest.fixture
def told(monkeypatch):
    """All that policies are told, in its order: a gradient held back for a slow interface counts as late."""
    events = []
    decide = Policy.decide

    def listening(policy, event):
        events.append((policy, event))
        return decide(policy, event)

    monkeypatch.setattr(Policy, "decide", listening)
    return events


def record(closes, mode, options, spool):
    """Write rounds into a run file, as a coordinator does, and read them from there."""
    journal = ControlJournal(spool.segments, 0)
    for close in closes:
        journal.update(close, mode=mode, options=options)
    journal.close()
    fold(spool, spool.root.with_suffix(""), final=True)
    with RunFile.open_read_only(spool.root.with_suffix("")) as run:
        return run.query(f"SELECT {COLUMNS} FROM sync_update ORDER BY version")


def as_recorded(update):
    """An update in the order of a run file: of contributors, and of the numbers of each."""
    parts = zip(update.gradients, update.weights, update.staleness, strict=True)
    told = sorted((g.worker, g.number, weight, stale) for g, weight, stale in parts)
    return (update.onto, *(tuple(column) for column in zip(*told, strict=True)))


@pytest.mark.parametrize(("mode", "options"), REPLAYED, ids=lambda value: str(value))
def test_the_policy_decides_again_what_the_run_has_recorded(ranks, told, tmp_path, mode, options):  # noqa: F811
    made = ranks(slow_last)
    office = made[0].office
    train(made, 1, 25, after=switching(office, {4: (mode, options)}))
    spool = Spool.beside(tmp_path / "run.starprof")
    spool.create()
    rows = record(office.closes, mode, options, spool)
    policy = create(mode, range(len(made)), options, office.closes[0].round)
    events = [event for whose, event in tuple(told) if whose.name == mode]
    decided = [update for event in events for update in policy.decide(event).updates]
    assert decided
    assert [(u.gradients, u.weights) for u in decided] == [
        (close.gradients, close.weights) for close in office.closes[: len(decided)]
    ], "not what the ranks were told, in its order"
    for update, (version, contributors, per, *lists) in zip(decided, rows, strict=False):
        of_file = (version, contributors_of(contributors, per), *map(from_listed_values, lists))
        assert of_file == as_recorded(update)
