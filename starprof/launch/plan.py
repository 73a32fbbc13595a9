"""What `starprof record` hands to the supervisor that it becomes: one small object, passed as one argument."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starprof.spool.layout import Spool

DEFAULT_RATE_HZ = 10.0
INGEST_EVERY_S = 60.0
WATCH_AFTER_S = 10.0
BUFFER_BYTES = 4 << 30
INGEST_SPOOL_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """One recording, decided.

    Attributes:
        run_file: absolute path of the run file; with `join` only its spool is used here.
        run_id: random id of the run.
        command: the job's command line, untouched.
        rate_hz: sampling rate of the cheap counters.
        max_size_bytes: limit of the run file, None = none.
        store: address of the database that the run goes to, None = the run file.
        node: id of this node, None = node 0 hands one out.
        listen: HOST:PORT on which node 0 takes in the other nodes, None = nothing listens.
        join: HOST:PORT of node 0, None = this node records alone or is node 0.
        job: name of the job, for a server of many; None = the batch job's id.
        token_file: file with the shared secret, None = STARPROF_TOKEN or (node 0) a generated one.
        control: JSON object of what the ranks are told of control, None = they are not under control.
        advise: JSON object of what the advisor is told, None = there is none.
        lock_fd: open descriptor that holds the spool's lock over the exec.
        signal_mask: signals that were blocked when the user called us: the job gets the same.
        pythonpath: PYTHONPATH as the user had it, None = unset.
        ingest_every_s: seconds between two ingester runs.
        watch: whether the job is watched while it runs, on the node that holds the run file.
        watch_after_s: how long it runs before that begins.
        buffer_bytes: with `join`, what may wait on this node's disk while node 0 can't be reached.
        metrics: HOST:PORT on which whoever watches serves metrics, None = nowhere.
    """

    run_file: str
    run_id: str
    command: tuple[str, ...]
    lock_fd: int
    rate_hz: float = DEFAULT_RATE_HZ
    max_size_bytes: int | None = None
    store: str | None = None
    node: int | None = 0
    listen: str | None = None
    join: str | None = None
    job: str | None = None
    token_file: str | None = None
    control: str | None = None
    advise: str | None = None
    signal_mask: tuple[int, ...] = ()
    pythonpath: str | None = None
    ingest_every_s: float = INGEST_EVERY_S
    watch: bool = True
    watch_after_s: float = WATCH_AFTER_S
    buffer_bytes: int = BUFFER_BYTES
    metrics: str | None = None

    @property
    def path(self) -> Path:
        """The run file."""
        return Path(self.run_file)

    @property
    def target(self) -> str:
        """What the ingester writes to."""
        return self.store or self.run_file

    @property
    def spool(self) -> Spool:
        """The spool of this node."""
        return Spool.beside(self.path)

    @property
    def watch_arguments(self) -> tuple[str, ...]:
        """What whoever watches is told beside the spool."""
        return () if self.metrics is None else ("--metrics", self.metrics)

    def to_argv(self) -> list[str]:
        """Arguments of the supervisor. The command stays apart: `ps` shows it, and it may be long."""
        fields: dict[str, Any] = asdict(self)
        command = fields.pop("command")
        return [json.dumps({k: v for k, v in fields.items() if v is not None or k == "node"}), *command]

    @classmethod
    def from_argv(cls, argv: list[str]) -> Plan:
        """Read back what `to_argv` wrote."""
        fields: dict[str, Any] = json.loads(argv[0])
        fields["signal_mask"] = tuple(fields.get("signal_mask", ()))
        return cls(command=tuple(argv[1:]), **fields)
