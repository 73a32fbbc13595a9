"""Which events can happen next in a world of the round protocol."""

from starprof.sync.policies import MODES
from starprof.sync.protocol.member import At


class Choices:
    """The part of a world that says so."""

    def enabled(self):
        events = []
        for r in self.names:
            if r not in self.cut:
                if self.to_coordinator[r] and (r in self.alive or r in self.silent):
                    events.append(("to coordinator", r))
                if self.to_rank[r] and r in self.alive:
                    events.append(("to rank", r))
            if r in self.alive and r in self.computing and self._can_end(self.computing[r]):
                events.append(("compute", r))
            if r in self.pulls and r in self.alive and self.pulls[r][0] in self.alive:
                holder, version = self.pulls[r]
                # Parameters with steps of the rank's own on top are those of no version.
                if self.members[holder].version >= version and not self.own[holder]:
                    events.append(("pull", r))
        for key in sorted(self.groups):
            group = self.groups[key]
            if group.entered == group.ended:
                continue
            everybody = group.entered >= set(group.close.members)
            broken = any(
                m not in self.alive or (m not in group.entered and self._refuses(m, *key[:2])) or m in group.ended
                for m in group.close.members
            )
            for r in sorted(group.entered - group.ended):
                if r in self.alive:
                    if everybody:
                        events.append(("reduced", key, r))
                    whole = everybody and group.close.members and self.alive >= set(group.close.members)
                    if key in self.torn or (broken and not whole):
                        events.append(("failed", key, r))
        events += [("mail", i) for i, (to, _) in enumerate(self.mail) if to in self.alive]
        events += [("gone", r) for r in sorted(self.silent)]
        events += [("heal", r) for r in sorted(self.cut)]
        events += [("lease", r) for r in sorted(self.cut) if self._impatient(r)]
        events += [
            ("fault", i, rank)
            for i, (kind, named) in enumerate(self.faults)
            for rank in ([named] if named is not None else self.names if kind != "coordinator" else [0])
            if self._can(kind, rank)
        ]
        events += [("switch", 0)] if self.switches else []
        events += [("predict", 0)] if self.predictions else []
        if self.coordinator.wake_at_s is not None:
            events.append(("wake", 0))
        return events

    def _policy_drops(self):
        return any(mode is not None and MODES[mode].drops for mode in self.modes)

    def _can_end(self, begin):
        """A native step has a collective of all ranks in it."""
        return not begin.native or all(self.native_begun[o] >= begin.version for o in self.names)

    def _refuses(self, r, number, attempt):
        member = self.members[r]
        void = r in self.void or member.void
        return attempt <= member._log.refused.get(number, -1) or void or number < member._log.held

    def _impatient(self, r):
        return self.coordinator.can_spare(r) or self.coordinator.preparing

    def _can(self, kind, r):
        if kind == "crash":
            # A crash in native steps ends the job: its collectives are the job's own.
            return r in self.alive and all(not self.members[o].native for o in self.alive) and len(self.alive) > 1
        if kind == "cut":
            return r in self.alive and r not in self.cut
        if kind == "tear":
            return r in self.alive and bool(self._reducing(r))
        return kind == "coordinator" or (r in self.alive and self.members[r].at is not At.DONE)

    def _reducing(self, r):
        """Attempts that a rank has entered and not come to the end of."""
        return {key for key, group in self.groups.items() if r in group.entered - group.ended}
