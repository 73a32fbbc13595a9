"""Flight-recorder dumps of made-up jobs: a small model of ranks that schedule, join and complete calls."""

import json
import pickle
from dataclasses import dataclass, field

CALLS = {"all_reduce": "nccl:all_reduce", "all_gather": "nccl:_all_gather_base", "all_to_all": "nccl:all_to_all"}


@dataclass
class Job:
    """Dumps by rank.

    Attributes:
        groups: members by group name, in the order in which the job makes its groups.
        only_pending: dumps hold pending calls only, as the watchdog's short form does; `pg_status` says the rest.
    """

    groups: dict[str, list[int]]
    only_pending: bool = False
    status: bool = True
    entries: dict[int, list[dict]] = field(default_factory=dict)
    clock: int = 1_700_000_000_000_000_000

    @property
    def ranks(self):
        return sorted({rank for members in self.groups.values() for rank in members})

    def call(self, group, sequence, ranks, state, name="all_reduce", shape=(1024,)):
        """One call as `ranks` see it."""
        self.clock += 1_000_000
        for rank in ranks:
            self.entries.setdefault(rank, []).append(
                {
                    "record_id": len(self.entries.get(rank, [])),
                    "pg_id": self._own_numbers(rank)[group],
                    "process_group": (group, f"group {group}"),
                    "collective_seq_id": sequence,
                    "p2p_seq_id": 0,
                    "op_id": sequence,
                    "profiling_name": CALLS.get(name, f"nccl:{name}"),
                    "time_created_ns": self.clock + rank,
                    "input_sizes": [list(shape)],
                    "input_dtypes": ["Float"],
                    "state": state,
                    "is_p2p": False,
                }
            )
        return self

    def run_of(self, group, first, last, state="completed", **about):
        """Calls that all members of a group see alike."""
        for sequence in range(first, last + 1):
            self.call(group, sequence, self.groups[group], state, **about)
        return self

    def send(self, group, rank, peer, kind="send", state="scheduled", count=1):
        """A send or receive, numbered within the group as the recorder does."""
        members = self.groups[group]
        arrow = "->" if kind == "send" else "<-"
        self.call(group, 0, [rank], state, name=f"{kind} {members.index(rank)}{arrow}{members.index(peer)}")
        entry = self.entries[rank][-1]
        entry |= {"is_p2p": True, "p2p_seq_id": count, "collective_seq_id": 0}
        return self

    def _own_numbers(self, rank):
        own = [name for name, members in self.groups.items() if rank in members]
        return {name: 3 * place for place, name in enumerate(own)}

    def dump(self, rank):
        """What one rank writes."""
        entries = self.entries.get(rank, [])
        own = self._own_numbers(rank)
        content = {
            "version": "2.9",
            "nccl_version": "2.27.3",
            "pg_config": {
                name: {"name": name, "desc": f"group {name}", "ranks": str(self.groups[name])} for name in own
            },
            "entries": [e for e in entries if e["state"] != "completed"] if self.only_pending else entries,
        }
        if self.status:
            content["pg_status"] = {str(number): self._status(name, entries) for name, number in own.items()}
        return content

    def _status(self, group, entries):
        mine = [e for e in entries if e["process_group"][0] == group]
        number = max((e["collective_seq_id"] or e["p2p_seq_id"] for e in mine), default=-1)
        done = [e["collective_seq_id"] for e in mine if e["state"] == "completed"]
        return {
            "last_enqueued_collective": number,
            "last_started_collective": -1,
            "last_completed_collective": max(done, default=-1),
        }

    def write(self, folder, *, ranks=None, form="pickle", name="dump_{}"):
        """Files of some ranks; returns the folder as text."""
        for rank in self.ranks if ranks is None else ranks:
            file = folder / name.format(rank)
            if form == "json":
                file.write_text(json.dumps(self.dump(rank)))
            else:
                file.write_bytes(pickle.dumps(self.dump(rank), protocol=2))
        return str(folder)
