"""Takes a process's models under control: nothing of it is in place unless control was asked for."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch.distributed as dist
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from starprof.control import modes
from starprof.control.actuators.inrank.obey import install as install_orders
from starprof.control.engine.batches import Batches
from starprof.control.engine.ddp import DdpPatches
from starprof.control.engine.driver import Patches, RankDriver
from starprof.control.engine.engine import Engine
from starprof.control.engine.enrolment import Enrolment
from starprof.control.engine.island.driver import IslandDriver, asker
from starprof.control.engine.island.enrolment import IslandEnrolment
from starprof.control.engine.island.fsdp import FsdpPatches
from starprof.control.engine.island.topology import NoIslandsError, is_root, island_of
from starprof.control.engine.objection import Objection
from starprof.control.engine.refusals import UserCollectives
from starprof.control.engine.rendezvous import Rendezvous, Wish
from starprof.control.engine.updating import Updating
from starprof.errors import UsageError
from starprof.hook import identity
from starprof.hook.boundary import Guard
from starprof.hook.install import Installed
from starprof.hook.phases import BLOCKED
from starprof.hook.recorder import Recorder
from starprof.model import env

D = TypeVar("D", bound=RankDriver)


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
        self._collectives = UserCollectives(guard, self._before_collective, self._allow_collective)
        self._patches = DdpPatches(self._met)
        self._sharded = FsdpPatches(guard, self._met_sharded)
        self._hang_up: dict[RankDriver, Callable[[], None]] = {}
        self._enrolled = 0
        self._objections: dict[RankDriver, Objection] = {}
        self._undriven: list[Objection] = []

    def install(self) -> None:
        """Put the patches in."""
        self._patches.install()
        self._sharded.install()
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
        self._withdraw_undriven()

    def _end(self, driver: RankDriver) -> None:
        """Its training is over, or its model is gone."""
        self.drivers.remove(driver)
        driver.finish()
        self._withdraw(driver)
        hang_up = self._hang_up.pop(driver, None)
        if hang_up is not None:
            hang_up()
        self._count()

    def _count(self) -> None:
        for driver in self.drivers:
            driver.seen.models = len(self.drivers)

    def _forked(self) -> None:
        self._patches.forget()
        self._sharded.forget()
        self.drivers = []
        self._hang_up = {}
        self._objections = {}
        self._undriven = []

    def _met(self, model: DistributedDataParallel) -> RankDriver | None:
        """A model's first forward pass."""
        return self._guard.attempt(self._drive, model)  # type: ignore[no-any-return]

    def _met_sharded(self, model: Module) -> RankDriver | None:
        """The first forward pass of a model that FSDP2 shards."""
        return self._guard.attempt(self._drive_sharded, model)  # type: ignore[no-any-return]

    def _drive(self, model: DistributedDataParallel) -> RankDriver:
        return self._take(self._driver_of(RankDriver, model, model.module, self._patches))

    def _drive_sharded(self, model: Module) -> RankDriver | None:
        try:
            island = island_of(model)
        except NoIslandsError as error:
            self._stay_native(str(error))
            return None
        driver = self._driver_of(IslandDriver, model, model, self._sharded)
        place = f"starprof/ask/{identity.attempt()}/{len(self.drivers)}"
        driver.island, driver.ask = island, asker(place, island)
        self._collectives.island = frozenset(island.ranks)
        self._take(driver)
        return driver

    def _driver_of(self, kind: type[D], model: Module, inner: Module, patches: Patches) -> D:
        boundary = self._installed.boundary if self._installed is not None else None
        quiet: Any = boundary.quiet if boundary is not None else contextlib.nullcontext
        left_out = boundary.left_out if boundary is not None else None
        updating = Updating(self._guard, inner, (), quiet=quiet, left_out=left_out)
        updating.install()
        driver = kind(
            model,
            self._guard,
            patches,
            self._batches,
            self._collectives,
            updating,
            self._enrol,
            self._refused,
        )
        driver.accelerators = os.environ.get(env.CONTROL_GPU) == "1"
        driver.waiting = self._waiting
        return driver

    def _take(self, driver: RankDriver) -> RankDriver:
        self.drivers.append(driver)
        self._count()
        weakref.finalize(driver.model, self._gone, weakref.ref(driver)).atexit = False
        return driver

    def _gone(self, reference: weakref.ref[RankDriver]) -> None:
        driver = reference()
        if driver is not None and driver in self.drivers:
            self._guard.attempt(self._end, driver)

    def _epoch_ended(self) -> None:
        for driver in self.drivers:
            driver.epoch_ended()

    def _before_collective(self, name: str) -> None:
        for driver in self.drivers:
            driver.before_collective(name)

    def _allow_collective(self) -> None:
        for driver in self.drivers:
            driver.check()

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

    def _refused(self, driver: RankDriver, reasons: list[str]) -> None:
        """Rounds are not possible, or not any more: every rank with a reason says so, here and to the coordinator."""
        self._say_refused(reasons)
        enrolment = self._enrolment(driver, None)
        if driver not in self._hang_up and dist.get_rank() in enrolment.members():
            objection = self._objections.get(driver)
            if objection is None:
                objection = self._objections[driver] = Objection(enrolment, dist.get_rank(), self._guard)
            objection.raise_for(reasons)

    def _say_refused(self, reasons: list[str]) -> None:
        told = "; ".join(reasons)
        os.write(2, f"starprof: rank {dist.get_rank()} is for native steps only: {told}\n".encode("utf-8", "replace"))

    def _stay_native(self, reason: str) -> None:
        """Rounds are not possible with this kind of model, whatever its loop does."""
        self._say_refused([reason])
        objection = Objection(Rendezvous(self._wish, self._enrolled), dist.get_rank(), self._guard)
        self._undriven.append(objection)
        objection.raise_for([reason])

    def _withdraw_undriven(self) -> None:
        for objection in self._undriven:
            objection.withdraw()
        self._undriven = []

    def _enrolment(self, driver: RankDriver, recorder: Recorder | None) -> Enrolment:
        kind = IslandEnrolment if isinstance(driver, IslandDriver) else Enrolment
        return kind(self._wish, self._enrolled, driver, self._batches, recorder)

    def _withdraw(self, driver: RankDriver) -> None:
        objection = self._objections.pop(driver, None)
        if objection is not None:
            objection.withdraw()

    def _enrol(self, driver: RankDriver) -> Engine:
        """Connect a model whose loop allows rounds."""
        self._withdraw(driver)
        self._withdraw_undriven()
        with self._collectives.ours():
            recorder = self._installed.hook.recorder if self._installed is not None else None
            enrolment = self._enrolment(driver, recorder)
            self._enrolled += 1
            engine, self._hang_up[driver] = enrolment.connected()
            return engine


def install_asked(installed: Installed | None) -> Control | None:
    """Take this process's models under control, if the launcher has asked for it."""
    wish = Wish.from_environment()
    if wish is None:
        return None
    if installed is not None:
        installed.hook.guard.attempt(install_orders, installed.hook.recorder, installed.hook.guard.attempt)
    return install(wish, installed)


def attach_model(model: Any, mode: str, options: Mapping[str, Any], max_lag: int | None) -> None:
    """Take a model under control, asked for by the script that trains it; says on stderr what is wrong."""
    try:
        if not isinstance(model, DistributedDataParallel) and not is_root(model):
            raise UsageError("the model is in neither DistributedDataParallel nor fully_shard")
        modes.mode(mode, options, range(dist.get_world_size()))
        if _control is None:
            install(Wish(mode, dict(options), max_lag), _recording())
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


def _before(holder: Any, name: str, ours: Any) -> None:
    original = getattr(holder, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ours()
        return original(*args, **kwargs)

    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    setattr(holder, name, wrapper)
