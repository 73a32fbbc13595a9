"""Takes a process's DDP models under control: nothing of it is in place unless control was asked for."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from starprof.control import modes
from starprof.control.coordinator.settings import TOKEN
from starprof.control.engine.batches import Batches
from starprof.control.engine.ddp import DdpPatches
from starprof.control.engine.driver import RankDriver
from starprof.control.engine.engine import Engine
from starprof.control.engine.flat import Layout
from starprof.control.engine.groups import Groups, own_client
from starprof.control.engine.home import Home, starter
from starprof.control.engine.loopupdates import LoopUpdates
from starprof.control.engine.peers import Peers
from starprof.control.engine.refusals import UserCollectives
from starprof.control.engine.updating import Updating
from starprof.control.journal import ControlJournal
from starprof.control.link import CoordinatorLink
from starprof.errors import TransportError, UsageError
from starprof.hook import identity
from starprof.hook.boundary import Guard
from starprof.hook.install import Installed
from starprof.hook.phases import BLOCKED
from starprof.hook.recorder import Recorder
from starprof.model import env
from starprof.spool.layout import Spool
from starprof.sync.protocol.member import Member

STORE_S = 30.0
"""How long the first rank may take to tell the others what they need."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What control was asked for.

    Attributes:
        mode: that is wanted from the start.
        options: of the mode.
    """

    mode: str = "native"
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Wish | None:
        """What the launcher asked for; None: nothing, and off means off."""
        told = environ.get(env.CONTROL)
        if not told or environ.get(env.DISABLE) == "1":
            return None
        wanted = json.loads(told)
        return cls(str(wanted.get("mode", "native")), dict(wanted.get("options", {})))


class Control:
    """One per process.

    Attributes:
        drivers: of the models that were met.
    """

    def __init__(self, wish: Wish, guard: Guard, installed: Installed | None) -> None:
        """Prepare.

        Args:
            wish: what was asked for.
            guard: takes what goes wrong while nothing depends on it.
            installed: the recording hook, None where nothing is recorded.
        """
        self.drivers: list[RankDriver] = []
        self._wish = wish
        self._guard = guard
        self._installed = installed
        self._batches = Batches()
        self._collectives = UserCollectives(guard, self._before_collective)
        self._patches = DdpPatches(self._met)
        self._links: dict[RankDriver, CoordinatorLink] = {}
        self._enrolled = 0

    def install(self) -> None:
        """Put the patches in."""
        self._patches.install()
        self._batches.install(self._guard)
        self._batches.on_epoch_end = self._batches.abandoned = self._epoch_ended
        self._collectives.install()
        _before(dist.distributed_c10d, "destroy_process_group", self.finish)
        dist.destroy_process_group = dist.distributed_c10d.destroy_process_group
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._forked)

    def finish(self) -> None:
        """The training is over in this process."""
        for driver in list(self.drivers):
            self._end(driver)

    def _end(self, driver: RankDriver) -> None:
        """Its training is over, or its model is gone."""
        self.drivers.remove(driver)
        driver.finish()
        link = self._links.pop(driver, None)
        if link is not None:
            link.close()
        self._count()

    def _count(self) -> None:
        for driver in self.drivers:
            driver.seen.models = len(self.drivers)

    def _forked(self) -> None:
        self._patches.forget()
        self.drivers = []
        self._links = {}

    def _met(self, model: DistributedDataParallel) -> RankDriver | None:
        """A model's first forward pass."""
        return self._guard.attempt(self._drive, model)  # type: ignore[no-any-return]

    def _drive(self, model: DistributedDataParallel) -> RankDriver:
        boundary = self._installed.boundary if self._installed is not None else None
        quiet: Any = boundary.quiet if boundary is not None else contextlib.nullcontext
        left_out = boundary.left_out if boundary is not None else None
        updating = Updating(self._guard, model.module, (), quiet=quiet, left_out=left_out)
        updating.install()
        driver = RankDriver(
            model,
            self._guard,
            self._patches,
            self._batches,
            self._collectives,
            updating,
            self._enrol,
            self._refused,
        )
        driver.waiting = self._waiting
        self.drivers.append(driver)
        self._count()
        weakref.finalize(model, self._gone, weakref.ref(driver)).atexit = False
        return driver

    def _gone(self, reference: weakref.ref[RankDriver]) -> None:
        driver = reference()
        if driver is not None and driver in self.drivers:
            self._guard.attempt(self._end, driver)

    def _epoch_ended(self) -> None:
        for driver in self.drivers:
            driver.epoch_ended()

    def _before_collective(self, _name: str) -> None:
        for driver in self.drivers:
            driver.before_collective()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Waiting for others is recorded as such."""
        recorder = self._installed.hook.recorder if self._installed is not None else None
        token = None if recorder is None else self._guard.attempt(recorder.enter, BLOCKED)
        try:
            yield
        finally:
            if recorder is not None and token is not None:
                self._guard.attempt(recorder.machine.leave, token)

    def _refused(self, reasons: list[str]) -> None:
        """Rounds are not possible: said once by every rank that has a reason of its own."""
        rank = dist.get_rank()
        told = "; ".join(reasons)
        os.write(2, f"starprof: rank {rank} stays with native steps: {told}\n".encode("utf-8", "replace"))

    def _enrol(self, driver: RankDriver) -> Engine:
        """Connect a model whose loop allows rounds."""
        with self._collectives.ours():
            recorder = self._installed.hook.recorder if self._installed is not None else None
            enrolment = Enrolment(self._wish, driver, self._batches, recorder, self._enrolled)
            self._enrolled += 1
            engine, self._links[driver] = enrolment.connected()
            return engine


@dataclass
class Enrolment:
    """What connects one model to the other ranks and the coordinator; `place` counts the models of the process."""

    wish: Wish
    driver: RankDriver
    batches: Batches
    recorder: Recorder | None
    place: int

    def connected(self) -> tuple[Engine, CoordinatorLink]:
        """The model's engine, at work, and its connection.

        Raises:
            TransportError: the job's store does not answer.
        """
        rank, world = dist.get_rank(), dist.get_world_size()
        attempt = identity.attempt()
        job_store = own_client(dist.distributed_c10d._get_default_store())
        store = dist.PrefixStore(f"starprof/{attempt}/{self.place}", job_store)
        secret = _secret(store, rank)
        host = reachable_host()
        model = self.driver.model
        ignored = model.parameters_to_ignore
        named = model.module.named_parameters()
        hyper_bytes = len(json.dumps(self.driver.updating.hyper()))
        layout = Layout([p for name, p in named if p.requires_grad and name not in ignored], 256 + 2 * hyper_bytes)
        lock = threading.RLock()
        member = Member(rank, tuple(range(world)), version=self.driver.seen.synchronisations - 1)
        updates = LoopUpdates(self.driver.updating, model.module)
        engine = Engine(member, layout, Groups(store, rank), updates, self.batches, lock)
        peers = Peers(dist.PrefixStore("peers", own_client(store)), rank, secret, engine, host)
        home = Home(own_client(store), rank, starter(self._settings(world, attempt), _environ(secret), host, None))
        link = CoordinatorLink(
            home.address,
            secret,
            rank,
            hello=member.hello,
            on_message=engine.told,
            on_lost=lambda: None,
            lock=lock,
            on_dialled=home.dialled,
        )
        engine.connect(peers, link)
        self._record(engine, rank, attempt)
        link.start()
        return engine, link

    def _settings(self, world: int, attempt: int) -> dict[str, object]:
        settings: dict[str, object] = {
            "ranks": world,
            "state": str(state_folder()),
            "mode": self.wish.mode,
            "options": dict(self.wish.options),
            "attempt": attempt,
            "node": identity.node(),
        }
        spool = os.environ.get(env.SPOOL)
        if spool:
            settings["segments"] = str(Spool(Path(spool)).segments)
        return settings

    def _record(self, engine: Engine, rank: int, attempt: int) -> None:
        """Write every step in rounds into the run."""
        if self.recorder is None:
            if rank == 0:
                os.write(2, f"starprof: under control: starprof ctl {state_folder()} status\n".encode())
            return
        journal = ControlJournal(self.recorder.spool.segments, identity.node(), attempt=attempt)
        atexit.register(journal.close)
        self.driver.on_step = StepJournal(journal, self.recorder, engine, rank).step


class StepJournal:
    """Writes what a rank does in rounds."""

    def __init__(self, journal: ControlJournal, recorder: Recorder, engine: Engine, rank: int) -> None:
        """Write into this journal; the recorder numbers the steps."""
        self._journal = journal
        self._recorder = recorder
        self._rank = rank
        self._before = replace(engine.counts)
        self._skipped = 0

    def step(self, engine: Engine) -> None:
        """A step in rounds has handed in its gradient and was released."""
        counts, before = engine.counts, self._before
        self._journal.rank_step(
            rank=self._rank,
            step=self._recorder.step,
            number=counts.handed_in - 1,
            version=engine.version,
            waited_us=round((counts.waited_s - before.waited_s) * 1e6),
            updates=counts.updates - before.updates,
            skipped=self._skipped,
        )
        self._skipped = counts.skipped - before.skipped
        self._recorder.passed_over += self._skipped
        self._before = replace(counts)


def install_asked(installed: Installed | None) -> Control | None:
    """Take this process's models under control, if the launcher has asked for it."""
    wish = Wish.from_environment()
    return None if wish is None else install(wish, installed)


def attach_model(model: Any, mode: str, options: Mapping[str, Any]) -> None:
    """Take a model under control, asked for by the script that trains it; says on stderr what is wrong."""
    try:
        if not isinstance(model, DistributedDataParallel):
            raise UsageError("the model is not in DistributedDataParallel")
        modes.mode(mode, options, range(dist.get_world_size()))
        if _control is None:
            install(Wish(mode, dict(options)), _recording())
    except Exception as error:  # noqa: BLE001 - the boundary
        os.write(2, f"starprof: this job is not under control: {error}\n".encode("utf-8", "replace"))


def _recording() -> Installed | None:
    from starprof.hook.install import install as install_hook

    return install_hook()


_control: Control | None = None


def install(wish: Wish, installed: Installed | None) -> Control:
    """Take this process's models under control; a second call changes nothing."""
    global _control
    if _control is None:
        _control = Control(wish, installed.hook.guard if installed is not None else Guard(), installed)
        _control.install()
    return _control


def state_folder() -> Path:
    """Where the coordinator's control socket goes: beside the recording, else a folder of this job's own."""
    spool = os.environ.get(env.SPOOL)
    if spool:
        return Path(spool)
    job = os.environ.get("TORCHELASTIC_RUN_ID", "") or str(os.getppid())
    folder = Path(tempfile.gettempdir()) / f"starprof-{os.getuid()}-{job.replace('/', '_')}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def reachable_host(environ: Mapping[str, str] = os.environ) -> str:
    """Address of this machine that the other ranks can reach: the one towards the job's master. Nothing is sent."""
    master = environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _secret(store: Any, rank: int) -> bytes:
    """The job's secret. It is told by the job's store: whoever can read that can do anything with the job anyway."""
    try:
        if rank == 0:
            store.set("secret", secrets.token_hex(32))
        store.wait(["secret"], timedelta(seconds=STORE_S))
        return bytes(store.get("secret"))
    except RuntimeError as error:  # torch's stores have no narrower type
        raise TransportError(f"the job's store does not answer: {error}") from error


def _environ(secret: bytes) -> dict[str, str]:
    """For the coordinator: never recorded itself, and with the secret."""
    left_out = {env.SPOOL, env.CONTROL, "PYTHONPATH"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    home = os.environ.get(env.HOME) or str(Path(__file__).resolve().parents[3])
    return {**kept, "PYTHONPATH": home, TOKEN: secret.decode()}


def _before(holder: Any, name: str, ours: Any) -> None:
    original = getattr(holder, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ours()
        return original(*args, **kwargs)

    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    setattr(holder, name, wrapper)
