"""Plays many agents in one process: `agents.py ADDRESS FIRST LAST OF RANKS SECONDS START_NS`; prints the rows sent."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
import time
from collections import Counter

import numpy as np

from starprof.launch import kinds
from starprof.launch.outbox import MOST_FLYING_BYTES
from starprof.model.columns import INT_NULL
from starprof.model.schema import BY_NAME, row
from starprof.spool.frame import PACKED, Frame, json_frame
from starprof.wire.frames import PROOF_BYTES, ClientProof

STEP, NODE, RANK = (BY_NAME[name] for name in ("step", "node", "rank"))
RATE_HZ = 10
OWN_US, STEP_US = 300_000, 1_000_000
PIECE = 512 << 10


class Agent:
    """One node: its rows and its connection."""

    def __init__(self, node: int, ranks: int, world: int, start_ns: int, slow: tuple[int, int]) -> None:
        self.node, self.ranks, self.world, self.start_ns, self.slow = node, ranks, world, start_ns, slow
        self.sent: Counter[str] = Counter()
        self.noise = np.random.default_rng(node)
        self.ticks = dict.fromkeys(("process_sample", "node_sample", "nic_sample", "agent_sample"), 0)
        per_second = {"process_sample": ranks * RATE_HZ, "node_sample": RATE_HZ, "nic_sample": 2 * RATE_HZ}
        self.blocks = {name: self._block(name, count) for name, count in {**per_second, "agent_sample": 1}.items()}

    def hello(self) -> bytes:
        described = [
            json_frame(NODE, f"n{self.node}-1-1/node", 0, [row(NODE, node=self.node, host=f"node{self.node}")])
        ]
        for rank in self._ranks():
            cells = row(RANK, attempt=0, rank=rank, node=self.node, world_size=self.world)
            described.append(json_frame(RANK, f"n{self.node}-{rank}-1/rank", 0, [cells]))
        self.sent.update({"node": 1, "rank": self.ranks})
        return b"".join(frame.encode() for frame in described)

    def second(self, step: int) -> bytes:
        """What an agent writes once a second."""
        frames = []
        for rank, noise in zip(self._ranks(), self.noise.normal(0, 3000, self.ranks), strict=True):
            own = OWN_US + int(noise)
            if rank == self.slow[0] and step >= self.slow[1]:
                own += OWN_US
            known = {
                "attempt": 0,
                "rank": rank,
                "step": step,
                "start_mono_ns": self.start_ns + step * STEP_US * 1000,
                "dur_us": STEP_US,
                "forward_us": own,
                "blocked_us": STEP_US - own,
            }
            cells = struct.pack(STEP.struct_format, *(known.get(name, INT_NULL) for name in STEP.names))
            frames.append(Frame(STEP, f"n{self.node}-{rank}-1/slots", step, 1, PACKED, cells))
        for name, (rows, payload) in self.blocks.items():
            frames.append(Frame(BY_NAME[name], f"n{self.node}-1-1/{name}", self.ticks[name], rows, PACKED, payload))
            self.ticks[name] += rows
            self.sent[name] += rows
        self.sent["step"] += self.ranks
        return b"".join(frame.encode() for frame in frames)

    def _ranks(self) -> range:
        first = (self.node - 1) * self.ranks
        return range(first, first + self.ranks)

    def _block(self, name: str, rows: int) -> tuple[int, bytes]:
        table = BY_NAME[name]
        packed = b"".join(
            struct.pack(table.struct_format, *(self._cell(column, i) for column in table.names)) for i in range(rows)
        )
        return rows, packed

    def _cell(self, column: str, i: int) -> int:
        return self.node if column == "node" else 1_000_000 + 977 * i


async def play(agent: Agent, address: tuple[str, int], steps: int, phase_s: float) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    proof = ClientProof(kinds.NODE_0, os.environ["STARPROF_TOKEN"].encode(), "server")
    writer.write(proof.answer(await reader.readexactly(kinds.NODE_0.greeting_bytes)))
    frames = proof.check(await reader.readexactly(PROOF_BYTES))
    wish = {"node": agent.node, "host": f"node{agent.node}", "recorder": f"r{agent.node}", "job": "bench"}
    writer.write(frames.seal(kinds.JOIN, json.dumps(wish).encode()))
    streamed = taken = 0

    async def hear(wanted: int) -> None:
        nonlocal taken
        while True:
            while (frame := frames.next()) is not None:
                kind, payload = frame
                if kind == kinds.TAKEN:
                    (taken,) = struct.unpack("<Q", payload)
                if kind == wanted and (kind != kinds.TAKEN or taken >= streamed):
                    return
            data = await reader.read(65536)
            if not data:
                raise ConnectionError(f"the server hung up on node {agent.node}")
            frames.feed(data)

    def stream(data: bytes) -> None:
        nonlocal streamed
        streamed += len(data)
        for at in range(0, len(data), PIECE):
            writer.write(frames.seal(kinds.STREAM, data[at : at + PIECE]))

    await hear(kinds.WELCOME)
    stream(agent.hello())
    await hear(kinds.TAKEN)
    for step in range(steps):
        # A step's end, and then the moment at which this agent comes by.
        due_s = agent.start_ns / 1e9 + step + 1 + phase_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        stream(agent.second(step))
        await writer.drain()
        if streamed - taken > MOST_FLYING_BYTES:
            await hear(kinds.TAKEN)
    await hear(kinds.TAKEN)
    writer.write(frames.seal(kinds.BYE))
    await hear(kinds.FAREWELL)
    writer.close()


async def main(argv: list[str]) -> None:
    host, _, port = argv[0].rpartition(":")
    first, last, of, ranks, seconds, start_ns = map(int, argv[1:])
    world = of * ranks
    slow = (world // 3, seconds // 2)
    agents = [Agent(node, ranks, world, start_ns, slow) for node in range(first + 1, last + 1)]
    phases = np.random.default_rng(7).permutation(of) / of

    await asyncio.gather(*(play(a, (host, int(port)), seconds, float(phases[a.node - 1])) for a in agents))
    total: Counter[str] = Counter()
    for agent in agents:
        total.update(agent.sent)
    print(json.dumps(total))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
