"""Random and damaged messages for everything that reads what comes over a wire.

    python tests/serve/wire_fuzz.py --messages N --seed S     # prints what came of them as JSON

Right is: the message is taken, or it is refused by one of starprof's own errors (or the operating system's). What must
not be: any other exception, an answer to somebody who has not proven himself, a file outside of the spool, or memory
that grows with the number of messages.
"""

import argparse
import json
import os
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from starprof.control.codec import decode
from starprof.errors import StarprofError
from starprof.launch import kinds
from starprof.launch.inbox import Inbox
from starprof.launch.visitor import Visitor
from starprof.model.schema import row
from starprof.serve.desk import Desk
from starprof.serve.http import MetricsServer
from starprof.serve.jobwatch import TABLES, JobWatch
from starprof.spool.frame import json_frame, packed_frame
from starprof.spool.layout import Spool
from starprof.wire.frames import PROOF_BYTES, ClientProof

SECRET = b"a secret of the fuzzer"
MAX_GROWTH_MB = 24
CLEAN_EVERY = 2_000
WORDS = ["live", "steps", "jobs", "metrics", "job", "do", "ranks", "node", "host", "recorder", "name", "size", "../x",
         "n1.1.seg", "n1-1-1.ring", "run.json", "\x1b[2J", "\u202e", "", "a" * 300]  # fmt: skip


class Wrong(Exception):
    """What must not be."""


class House:
    """A host of visitors with one run."""

    def __init__(self, spool):
        self.inboxed = Inbox(spool, "r" * 32)

    def secrets(self):
        return [SECRET]

    def inbox(self, secret, wish):
        return self.inboxed

    def ask(self, secret, question, answer):
        answer(b"{}")

    def note(self, action, **fields):
        pass


class Fuzzer:
    """Everything that is fuzzed, and the randomness for it."""

    def __init__(self, folder, seed):
        self.random = random.Random(seed)
        self.folder = folder
        self.spool = Spool(folder / "run.starprof.spool")
        self.spool.create()
        self.house = House(self.spool)
        self.watch = JobWatch(Spool(folder / "watched.starprof.spool"))
        self.watch.spool.create()
        self.desk = Desk({"run": self.watch})
        self.metrics = MetricsServer(("127.0.0.1", 0), lambda: "# EOF\n", None)
        self.closed = MetricsServer(("10.0.0.1", 0), lambda: "secret", "token")
        self.outcomes = Counter()
        self.visitor = None
        self.client = None
        self.segments = 0
        self.targets = [
            (self.stranger, 3), (self.proven, 8), (self.damaged, 2), (self.question, 2),
            (self.request, 2), (self.control, 3), (self.followed, 1),
        ]  # fmt: skip

    def run(self, messages):
        """So many messages; tells how many were refused, by what was spoken to."""
        kinds_of, weights = zip(*self.targets, strict=True)
        for number in range(messages):
            target = self.random.choices(kinds_of, weights)[0]
            try:
                target()
                self.outcomes[f"{target.__name__}: taken"] += 1
            except (StarprofError, OSError):
                self.outcomes[f"{target.__name__}: refused"] += 1
                self.visitor = None
            if number % CLEAN_EVERY == 0:
                self.clean()

    def clean(self):
        """What node 0 would have folded in meanwhile; and nothing may lie anywhere else."""
        self.house.inboxed.close()
        for folder in (self.spool.segments, self.spool.rings, self.watch.spool.segments):
            for path in folder.iterdir():
                path.unlink()
        there = {path.name for path in self.folder.rglob("*")}
        expected = {"run.starprof.spool", "watched.starprof.spool", "rings", "segments", "agents", "live.known"}
        if there - expected:
            raise Wrong(f"files where none may be: {there - expected}")
        (self.watch.spool.root / "live.known").unlink(missing_ok=True)
        self.house = House(self.spool)
        self.visitor = None
        self.watch.close()
        self.watch = JobWatch(self.watch.spool)
        self.desk.jobs["run"] = self.watch

    # Targets.

    def stranger(self):
        """Bytes of somebody who knows no secret."""
        visitor = self.new_visitor()
        greeting = len(visitor.out)
        try:
            for _ in range(self.random.randint(1, 3)):
                visitor.feed(self.random.randbytes(self.random.choice([1, 31, 64, 65, 500])), 0)
        finally:
            if len(visitor.out) != greeting or visitor.proven:
                raise Wrong("a stranger got an answer")

    def proven(self):
        """A message of a node, well sealed, with whatever in it."""
        self.connected()
        kind, payload = self.message()
        self.visitor.feed(self.client.seal(kind, payload), 1)
        self.visitor.tend()
        self.visitor.out.clear()
        self.house.inboxed.write()

    def damaged(self):
        """Bytes that were changed on their way."""
        self.connected()
        data = bytearray(self.client.seal(*self.message()))
        places = self.random.sample(range(len(data)), self.random.randint(1, 4))  # twice the same bit is no damage
        for place in places:
            data[place] ^= 1 << self.random.randrange(8)
        before = bytes(self.visitor.out)
        self.visitor.feed(bytes(data), 1)
        if bytes(self.visitor.out) != before:
            raise Wrong("a damaged message was answered")
        self.visitor = None

    def question(self):
        answer = self.desk.answer(self.json_object())
        json.dumps(answer, allow_nan=False)

    def request(self):
        head = self.random.choice([b"GET /metrics HTTP/1.1", b"POST /x", b"", b"GET", b"HEAD /metrics HTTP/9"])
        more = self.random.choice([b"", b"Authorization: Bearer x", b"Authorization:", b":", self.random.randbytes(40)])
        request = self.mutated(head + b"\r\n" + more + b"\r\n\r\n")
        self.metrics._answer(request)
        if b"secret" in self.closed._answer(request):
            raise Wrong("metrics were told without the token")

    def control(self):
        data = json.dumps(self.json_value(3)).encode() if self.random.random() < 0.5 else self.random.randbytes(60)
        if self.random.random() < 0.3:
            data = b"\x01" + data
        decode(self.mutated(data))

    def followed(self):
        """Frames with good checksums and nonsense in them, as whoever follows the spool finds them."""
        self.segments += 1
        path = self.watch.spool.segments / f"n1.{self.segments}.seg"
        path.write_bytes(b"".join(self.frame() for _ in range(self.random.randint(1, 4))))
        self.watch.poll(time.monotonic())
        self.question()

    # Their parts.

    def new_visitor(self):
        return Visitor(self.house, "fuzzer", lambda _visitor: None, lambda: None)

    def connected(self):
        if self.visitor is not None and not self.visitor.over and not self.visitor._closing:
            return
        visitor = self.visitor = self.new_visitor()
        proof = ClientProof(kinds.NODE_0, SECRET, "here")
        answer = proof.answer(bytes(visitor.out))
        visitor.out.clear()
        visitor.feed(answer, 0)
        self.client = proof.check(bytes(visitor.out[:PROOF_BYTES]))
        visitor.out.clear()
        if self.random.random() < 0.9:
            wish = {"node": self.random.randint(1, 50), "host": "h", "recorder": str(self.random.randrange(1000))}
            visitor.feed(self.client.seal(kinds.JOIN, json.dumps(wish).encode()), 0)
            visitor.out.clear()

    def message(self):
        kind = self.random.choice([*range(20), kinds.STREAM, kinds.STREAM, kinds.OFFER, self.random.randrange(256)])
        payload = self.random.choice(
            [self.frame, self.some_json, lambda: self.random.randbytes(self.random.randrange(300))]
        )
        return kind, self.mutated(payload()) if self.random.random() < 0.4 else payload()

    def some_json(self):
        return json.dumps(self.json_object()).encode()

    def json_object(self):
        value = {self.random.choice(WORDS): self.json_value(2) for _ in range(self.random.randint(0, 4))}
        if self.random.random() < 0.7:
            value["do"] = self.random.choice(WORDS)
        if self.random.random() < 0.3:
            value |= {"name": self.random.choice(WORDS), "size": self.json_value(0)}
        return value

    def json_value(self, depth):
        simple = [None, True, -1, 0, 3, 1 << 70, 1.5, "x", self.random.choice(WORDS), float("inf")]
        if depth and self.random.random() < 0.3:
            parts = [self.json_value(depth - 1) for _ in range(self.random.randint(0, 3))]
            return parts if self.random.random() < 0.5 else {str(part): part for part in parts}
        return self.random.choice(simple)

    def frame(self):
        """A frame with a good checksum; its rows may be anything."""
        table = self.random.choice(TABLES)
        stream = f"{self.random.choice(['n1-', 'n1-', 'n2-', ''])}{self.random.randrange(9)}/{table.name}"
        seq = self.random.choice([0, 1, 5, 1 << 40])
        if table.packed:
            rows = [
                [self.random.choice([0, 1, 5, -1, None, (1 << 63) - 1, -(1 << 63)]) for _ in table.columns]
                for _ in range(self.random.randint(1, 3))
            ]
            rows = [
                [float(v or 0) if c.type.value == "DOUBLE" else v for v, c in zip(r, table.columns, strict=True)]
                for r in rows
            ]
            made = packed_frame(table, stream, seq, rows)
        else:
            known = {column.name: self.json_value(1) for column in table.columns}
            made = json_frame(table, stream, seq, [row(table, **known)])
        if self.random.random() < 0.2:  # a good checksum over what does not fit
            made = self.random.choice(
                [
                    replace(made, rows=self.random.choice([0, 2, 1 << 31])),
                    replace(made, encoding=self.random.choice([1, 2, 9])),
                    replace(made, payload=made.payload[self.random.randint(1, 20) :]),
                    replace(made, payload=b"[" * 100_000),
                ]
            )
        encoded = bytearray(made.encode())
        if self.random.random() < 0.1:
            struct.pack_into("<I", encoded, 8, self.random.choice([0, 1, 1 << 20, 0xFFFFFFFF]))
        return bytes(encoded)

    def mutated(self, data):
        data = bytearray(data)
        for _ in range(self.random.randint(0, 3)):
            at = self.random.randrange(len(data) + 1)
            match self.random.randrange(3):
                case 0 if data:
                    data[at % len(data)] = self.random.randrange(256)
                case 1:
                    del data[at : at + self.random.randint(1, 8)]
                case _:
                    data[at:at] = self.random.randbytes(self.random.randint(1, 8))
        return bytes(data)


def resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def fuzz(messages, seed):
    """What came of them; raises what must not be."""
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), seed)
        fuzzer.run(messages // 5)  # what is loaded and filled once
        before_mb = resident_mb()
        fuzzer.run(messages - messages // 5)
        growth_mb = resident_mb() - before_mb
        fuzzer.watch.close()
    if growth_mb > MAX_GROWTH_MB:
        raise Wrong(f"memory has grown by {growth_mb:.0f} MB")
    return {"messages": messages, "growth_mb": round(growth_mb, 1), **dict(sorted(fuzzer.outcomes.items()))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(fuzz(given.messages, given.seed)) + "\n")
