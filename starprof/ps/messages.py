"""What workers, shards and the head of a parameter server say to each other; bytes of tensors follow as payloads.

The head decides: it drives the policy, and writes a numbered log of *entries* that every shard carries out in the same
order. So all shards are at the same version at the same entry, and a worker that is released by an entry gets the same
version of every parameter, wherever it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from starprof.control.codec import Codec
from starprof.sync.policies import Gradient


@dataclass(frozen=True, slots=True)
class Part:
    """A gradient in an update: the `number`-th of `worker`, times `weight`."""

    worker: int
    number: int
    weight: float


@dataclass(frozen=True, slots=True)
class Named:
    """A gradient, by the number of its worker and its own."""

    worker: int
    number: int


@dataclass(frozen=True, slots=True)
class Entry:
    """Head to shards: what is to be done next, in this order.

    Attributes:
        serial: numbers the entries, from 0, without a hole.
        version: of the parameters before it; one more after it if it has parts.
        parts: gradients of the update; none: there is no update.
        hyper: the optimizer's hyper-parameters for it, of all its groups, as `optimizers.HYPER` orders them.
        clip: greatest norm of the whole gradient, over all shards; 0: it is not clipped.
        drop: gradients that are not needed any more.
        forget: workers that are gone, and the number of the first gradient that is not theirs.
        release: workers that get the parameters now, and the gradient that they have waited with.
        floor: entries before this one are done on all shards.
    """

    serial: int
    version: int
    parts: tuple[Part, ...] = ()
    hyper: tuple[float, ...] = ()
    clip: float = 0.0
    drop: tuple[Named, ...] = ()
    forget: tuple[Named, ...] = ()
    release: tuple[Named, ...] = ()
    floor: int = 0

    @property
    def used(self) -> tuple[tuple[int, int], ...]:
        """Worker and number of each gradient that nobody needs after it."""
        return (*((p.worker, p.number) for p in self.parts), *((d.worker, d.number) for d in self.drop))

    @property
    def after(self) -> int:
        """Version of the parameters after it."""
        return self.version + (1 if self.parts else 0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a shard is; the host and port of one that is nowhere for the moment are empty and 0."""

    shard: int
    host: str
    port: int


# Workers and the head.


@dataclass(frozen=True, slots=True)
class Hi:
    """Worker to head, first on each connection.

    Attributes:
        rank: of the worker.
        run: names its process: another one of the same rank begins anew.
        digest: of the model's layout and its optimizer; all workers have the same.
        waits: number that it waits to be released from; -1: it computes, or knows no number yet.
        arrived: the gradient that it waits with, once all shards hold it.
        hyper: that came with it.
        number: of its newest gradient; -1: it has none yet.
    """

    rank: int
    run: str
    digest: str
    waits: int = -1
    arrived: Gradient | None = None
    hyper: tuple[float, ...] = ()
    number: int = -1


@dataclass(frozen=True, slots=True)
class Arrive:
    """Worker to head: all shards hold this gradient."""

    gradient: Gradient
    hyper: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """Worker to head: it wants the newest parameters, without a gradient; as the answer to this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Worker to head: its training is over."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Anybody: still here; the other side answers with another one."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Head to a worker.

    Attributes:
        number: that it is released from as soon as it gets its first parameters; its gradients follow on it.
        first: it is to give the initial parameters, and says what they are (`Model`).
    """

    number: int
    first: bool


@dataclass(frozen=True, slots=True)
class Model:
    """Worker to head, as asked for; the payload is the `Spec` as JSON."""

    digest: str


@dataclass(frozen=True, slots=True)
class Places:
    """Head to workers: where the shards are.

    Attributes:
        shards: how many there are to be; 0: not known yet.
        places: of those that have one.
    """

    shards: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Head to a worker or shard: it can't take part, for this reason."""

    reason: str


# Workers and shards.


@dataclass(frozen=True, slots=True)
class Meet:
    """Worker to shard, first on each connection."""

    rank: int
    run: str


@dataclass(frozen=True, slots=True)
class First:
    """Worker to shard: the payload is the initial parameters."""

    shard: int


@dataclass(frozen=True, slots=True)
class Push:
    """Worker to shard: the payload is its part of a gradient.

    Attributes:
        gradient: which one.
        half: "" or the type of the numbers on the wire, float16 or bfloat16.
        unused: parameters of this shard without a gradient, by their place in it.
    """

    gradient: Gradient
    half: str
    unused: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Await:
    """Worker to shard, on a new connection: it waits to be released, with this gradient."""

    number: int


@dataclass(frozen=True, slots=True)
class Held:
    """Shard to worker: a gradient is here and outlives this process; -1: the initial parameters are."""

    number: int


@dataclass(frozen=True, slots=True)
class Parameters:
    """Shard to worker: released from gradient `number`; the payload is the shard's part of the parameters."""

    number: int
    version: int


# Shards and the head.


@dataclass(frozen=True, slots=True)
class Seen:
    """Shard to head: an entry that it has, and the squared norm of its part of the update if that was asked for."""

    entry: Entry
    square: float


@dataclass(frozen=True, slots=True)
class Report:
    """Shard to head, first on each connection.

    Attributes:
        shard: which one; -1: none yet.
        run: names its process.
        host: where it listens.
        port: the same.
        done: serial of the next entry that it has to do.
        version: of its parameters.
        holds: gradients that it holds.
        released: of each worker, the number that it was last released from.
        settled: of each worker, its newest gradient that was used, dropped, or released from.
        tail: entries that it remembers, done or not.
        digest: of the model that it holds; "" for none.
        ready: it has the initial parameters.
    """

    shard: int
    run: str
    host: str
    port: int
    done: int = 0
    version: int = 0
    holds: tuple[Gradient, ...] = ()
    released: tuple[Named, ...] = ()
    settled: tuple[Named, ...] = ()
    tail: tuple[Seen, ...] = ()
    digest: str = ""
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """Head to shard: be this one, of so many; the payload is the `Spec` as JSON."""

    shard: int
    shards: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Shard to head: it has the initial parameters, and won't lose them."""


@dataclass(frozen=True, slots=True)
class Done:
    """Shard to head: this entry is done, and won't be lost."""

    serial: int


@dataclass(frozen=True, slots=True)
class Norm:
    """Shard to head: squared norm of its part of an entry's update."""

    serial: int
    square: float


@dataclass(frozen=True, slots=True)
class Factor:
    """Head to shards: an entry's update is to be made with the gradient times this."""

    serial: int
    factor: float


@dataclass(frozen=True, slots=True)
class Give:
    """Head to shard: give all you have to the process that listens there, once you have done what came before."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Stay:
    """Head to shard: the hand-over is off; go on."""


@dataclass(frozen=True, slots=True)
class Took:
    """Shard to head: it has taken over another one's part, as a whole."""

    report: Report


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Shard to head: it could not give its part to the other, and goes on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Dismissed:
    """Head to shard: its part is another one's now; it ends."""


# From shard to shard.


@dataclass(frozen=True, slots=True)
class Inherit:
    """A part of what a shard hands over: a file of its folder, of which this piece begins at `at`.

    Attributes:
        name: of the file.
        at: place of the payload in it.
        size: of the whole file.
    """

    name: str
    at: int
    size: int


@dataclass(frozen=True, slots=True)
class Inherited:
    """First what is begun, then what is complete: so many files were handed over."""

    shard: int
    files: int


WORDS = Codec(
    (
        Hi,
        Arrive,
        Want,
        Leave,
        Ping,
        Welcome,
        Model,
        Places,
        Refused,
        Meet,
        First,
        Push,
        Await,
        Held,
        Parameters,
        Report,
        Keep,
        Ready,
        Done,
        Norm,
        Factor,
        Give,
        Stay,
        Took,
        GaveUp,
        Dismissed,
        Entry,
        Inherit,
        Inherited,
    )
)
"""All of them."""

KIND = 1
"""Of frames that carry one."""
