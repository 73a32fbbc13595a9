"""What must hold in a world of the round protocol: at any time, and when nothing can happen any more."""

from starprof.sync.protocol.member import At


class Checks:
    """The part of a world that is asked."""

    def check(self):
        """No two ranks whose state counts have applied different results as the same round."""
        # Whoever gets a state counts when it is let in: the state may have become void before that.
        counting = [r for r in self.alive if r not in self.void and not self.coordinator.ranks[r].lost]
        if counting != self.counted:
            self.counted, self.history, self.checked = counting, [], dict.fromkeys(counting, 0)
        plans = {}
        for r in set(counting) & set(self.computing):
            begin, local = self.computing[r], self.members[r].local
            assert plans.setdefault((begin.version, begin.native), local) == local, "ranks do different things"
        for r in counting:
            for number in range(self.checked[r], len(self.applied[r])):
                if number == len(self.history):
                    self.history.append(self.applied[r][number])
                there = (self.applied[r][number], self.history[number])
                assert there[0] == there[1], f"round {number} is not the same everywhere: {there}"
            self.checked[r] = len(self.applied[r])
        ended_at = {}
        for r in counting:
            for epoch, version in self.met[r].items() if r not in self.has_pulled else ():
                there = ended_at.setdefault(epoch, version)
                assert there == version, f"a meeting ended at several versions: {there} and {version}"

    def check_end(self):
        """Everybody who lives has finished, with the same history, in which no gradient counts twice."""
        self.check()
        if self.given_up:
            return  # the job ends with an error that says why
        lost = {r for r in self.alive if self.coordinator.ranks[r].lost}
        let_in = [r for r in self.alive if r not in lost]
        counting = [r for r in let_in if r not in self.void]
        stand = {r for r in lost if self.members[r].at is not At.DONE and not self._comes_too_late(r)}
        assert not stand or not counting, f"ranks {stand} have been left behind"
        if not counting:
            assert len(self.alive) < len(self.names)
            return  # whoever held the history is gone: the job starts again from its checkpoint
        if len(self.alive) < len(self.names) and any(self.members[r].native for r in counting):
            return  # a rank was lost on the way back to native steps: their own collectives end the job
        for r in counting:
            assert self.members[r].at is At.DONE, f"rank {r} stands still: {self.members[r].at}"
        for r in counting:
            used = [(g.worker, g.number) for entry in self.applied[r] if entry[1] != "native" for g in entry[1]]
            assert len(used) == len(set(used)), "a gradient counts twice"
            assert [entry[0] for entry in self.applied[r]] == list(range(len(self.applied[r])))
            if self.epochs is None or self.epochs.last:
                assert not self.own[r], "it has left with steps of its own"
            if self.faultless and self.epochs is not None and self.epochs.last:
                told = {(g.worker, g.number) for g in self.members[r]._own.open}
                assert told == set(), "what became of a gradient is not known"
                kept = {number for worker, number in used if worker == r} | self.dropped[r]
                kept |= set(range(self.members[r]._own.void_before))
                assert kept == set(range(self.members[r]._own.number)), "a gradient is lost"

    def _comes_too_late(self, r):
        """It waits for the state of a rank that has left with steps of its own on top."""
        return r in self.pulls and self.own[self.pulls[r][0]] and self.members[self.pulls[r][0]].at is At.DONE
