"""Connects one model of islands: its ranks to each other, and the leader to the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from starprof.control.engine.engine import Engine
from starprof.control.engine.enrolment import Enrolment, bytes_of
from starprof.control.engine.groups import Groups
from starprof.control.engine.island.driver import IslandDriver
from starprof.control.engine.island.follower import IslandFollower
from starprof.control.engine.island.leader import IslandLeader
from starprof.control.engine.island.lines import Lobby, joined
from starprof.control.engine.island.mirror import Mirror
from starprof.control.engine.island.shards import Shards
from starprof.control.engine.jobstore import secret_of
from starprof.control.engine.loopupdates import LoopUpdates
from starprof.control.engine.peers import QUEUED, Peers
from starprof.control.engine.rendezvous import reachable_host
from starprof.control.engine.states import States
from starprof.sync.protocol.member import Member


class IslandEnrolment(Enrolment):
    """See `Enrolment`."""

    driver: IslandDriver

    def connected(self) -> tuple[Engine, Callable[[], None]]:
        """See `Enrolment`."""
        rank, island = dist.get_rank(), self.driver.island
        store = self.store()
        secret = secret_of(store)
        key = f"island/{island.name}/{self.driver.seen.synchronisations}"
        if not island.leads:
            follower = IslandFollower(*self._parts(Mirror), line=joined(store, key, rank, secret))
            follower.connect(self._peers(store, secret, follower), follower.link)
            self.record(follower, rank, told=False)
            follower.start()
            return follower, follower.close
        lines = Lobby(store, key, reachable_host(), secret).gathered(island.followers)
        parts = self._parts(Member)
        leader = IslandLeader(*parts, lines=lines)
        member, lock = parts[0], parts[-2]
        link = self.link(store, secret, member.rank, member.hello, leader.told, lock, leader.hopeless)
        leader.connect(self._peers(store, secret, leader), link)
        self.record(leader, rank, told=rank == 0)
        leader.start(on_lost=link.close)
        link.start()

        def hang_up() -> None:
            link.close()
            leader.close()

        return leader, hang_up

    def members(self) -> tuple[int, ...]:
        """See `Enrolment`."""
        return self.driver.island.leaders

    def _parts(self, kind: type[Member]) -> tuple[Any, ...]:
        """What the engine of this rank is made of; its member first, its lock and lag limit last."""
        island, model = self.driver.island, self.driver.model
        member = kind(island.name, island.leaders, version=self.driver.seen.synchronisations - 1)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        shards = Shards(trained, self.settings_bytes())
        groups = Groups(dist.PrefixStore(f"shard/{island.position}", self.store()), island.name)
        updates = LoopUpdates(self.driver.updating, model)
        states = States(model, self.driver.updating)
        return member, shards, states, groups, updates, self.batches, threading.RLock(), self.lag()

    def flat_bytes(self) -> int:
        """See `Enrolment`; the same on all ranks, whose shards may differ."""
        return -(-bytes_of(self.driver.model.parameters()) // len(self.driver.island.ranks))

    def _peers(self, store: Any, secret: bytes, engine: Engine) -> Peers:
        """Connections to the ranks of other islands that have the same shards."""
        island = self.driver.island
        place = dist.PrefixStore(f"peers/{island.position}", store)
        lag = self.lag()
        queued = QUEUED if lag is None else lag.rounds
        peers = Peers(place, island.name, secret, engine, reachable_host(), queued=queued)
        peers.tell()
        return peers
