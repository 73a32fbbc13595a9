"""Connects one model of a process, whose loop allows rounds, to the other ranks and the coordinator."""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch.nn import Parameter

from starprof.control.engine.batches import Batches
from starprof.control.engine.driver import RankDriver
from starprof.control.engine.engine import Engine
from starprof.control.engine.flat import Layout
from starprof.control.engine.groups import Groups
from starprof.control.engine.jobstore import secret_of
from starprof.control.engine.loopupdates import LoopUpdates
from starprof.control.engine.losses import LossLooks
from starprof.control.engine.noise import NoiseLooks, asked_every
from starprof.control.engine.peers import QUEUED, Peers
from starprof.control.engine.rendezvous import Rendezvous, reachable_host, state_folder
from starprof.control.engine.states import States
from starprof.control.journal import ControlJournal
from starprof.hook import identity
from starprof.hook.recorder import Recorder
from starprof.sync.protocol.lag import LagLimit
from starprof.sync.protocol.member import Member

KEPT_BYTES = 256 << 20
"""So much of results of rounds is kept for ranks that are behind; `MIN_LAG` of them in any case."""
MIN_LAG, MAX_LAG = 8, 1000


@dataclass
class Enrolment(Rendezvous):
    """What connects one model to the other ranks and the coordinator.

    Attributes:
        driver: of the model.
        batches: of the loop.
        recorder: None where nothing is recorded.
    """

    driver: RankDriver
    batches: Batches
    recorder: Recorder | None

    def connected(self) -> tuple[Engine, Callable[[], None]]:
        """The model's engine, at work, and what ends its connection.

        Raises:
            TransportError: the job's store does not answer.
        """
        rank, world = dist.get_rank(), dist.get_world_size()
        store = self.store()
        secret = secret_of(store)
        host = reachable_host()
        model = self.driver.model
        ignored = model.parameters_to_ignore
        named = model.module.named_parameters()
        trained = [p for name, p in named if p.requires_grad and name not in ignored]
        layout = Layout(trained, self.settings_bytes())
        lock = threading.RLock()
        member = Member(rank, tuple(range(world)), version=self.driver.seen.synchronisations - 1)
        updates = LoopUpdates(self.driver.updating, model.module)
        lag = self.lag()
        states = States(model.module, self.driver.updating)
        groups = Groups(store, rank, lambda why: engine.hopeless(why))
        every = asked_every()
        noise = NoiseLooks(rank, trained, self.driver.guard, every) if every else None
        engine = Engine(member, layout, states, groups, updates, self.batches, lock, lag, noise=noise)
        queued = QUEUED if lag is None else lag.rounds
        peers = Peers(dist.PrefixStore("peers", store), rank, secret, engine, host, queued)
        link = self.link(store, secret, rank, member.hello, engine.told, lock, engine.hopeless, peers.tell)
        engine.connect(peers, link)
        if self.wish.health:
            losses = LossLooks(rank, self.driver.guard, self.driver.updating.scale_on_device)
            losses.link, self.driver.losses = link, losses
        self.record(engine, rank, told=rank == 0)
        link.start()
        return engine, link.close

    def settings_bytes(self) -> int:
        """Room for the settings of an update."""
        return 256 + 2 * len(json.dumps(self.driver.updating.hyper()))

    def lag(self) -> LagLimit | None:
        """See `Rendezvous`; as many rounds as `KEPT_BYTES` of results are, if nothing else was asked for."""
        if self.wish.max_lag is not None:
            return LagLimit(self.wish.max_lag)
        return LagLimit(min(MAX_LAG, max(MIN_LAG, KEPT_BYTES // max(self.flat_bytes(), 1))))

    def flat_bytes(self) -> int:
        """Of a round's result, as a rank keeps it."""
        return bytes_of(self.driver.model.module.parameters())

    def record(self, engine: Engine, rank: int, *, told: bool) -> None:
        """Write every step in rounds into the run; `told`: where there is none, this rank says how to ask."""
        if self.recorder is None:
            if told:
                os.write(2, f"starprof: under control: starprof ctl {state_folder()} status\n".encode())
            return
        journal = ControlJournal(self.recorder.spool.segments, identity.node(), attempt=identity.attempt())
        atexit.register(journal.close)
        engine.while_waiting = journal.tick
        self.driver.on_step = StepJournal(journal, self.recorder, engine, rank, self._left_out).step

    def _left_out(self) -> int | None:
        return self.driver.updating.left_out


class StepJournal:
    """Writes what a rank does in rounds."""

    def __init__(
        self,
        journal: ControlJournal,
        recorder: Recorder,
        engine: Engine,
        rank: int,
        left_out: Callable[[], int | None],
    ) -> None:
        """Write into this journal; the recorder numbers the steps, `left_out` counts updates that were not finite."""
        self._journal = journal
        self._recorder = recorder
        self._rank = rank
        self._before = replace(engine.counts)
        self._skipped = 0
        self._left_out = left_out
        self._left_out_before = 0

    def step(self, engine: Engine) -> None:
        """A step in rounds has handed in its gradient and was released."""
        counts, before = engine.counts, self._before
        left_out = self._left_out()
        self._journal.rank_step(
            rank=self._rank,
            step=self._recorder.step,
            number=counts.handed_in - 1 if counts.handed_in > before.handed_in else None,
            version=engine.version,
            waited_us=round((counts.waited_s - before.waited_s) * 1e6),
            updates=counts.updates - before.updates,
            skipped=self._skipped,
            not_finite=None if left_out is None else left_out - self._left_out_before,
        )
        self._left_out_before = left_out or 0
        self._skipped = counts.skipped - before.skipped
        self._recorder.passed_over += self._skipped
        self._before = replace(counts)


def bytes_of(parameters: Iterable[Parameter]) -> int:
    """Of the gradients of those that are trained, each as large as the largest type among them."""
    trained = [p for p in parameters if p.requires_grad]
    elements, most = sum(p.numel() for p in trained), max((p.element_size() for p in trained), default=1)
    return int(elements * most)
