"""What makes rounds impossible for a job: each reason as one sentence that says what to do.

Also here: seeing the collectives that the user's own code calls, since a loop with one in every step can leave nobody
behind.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident, local
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from starprof.control.engine.updating.wrapping import replace_everywhere
from starprof.hook.boundary import Guard
from starprof.hook.lateimport import after_import
from starprof.hook.patches.collectives import COLLECTIVES
from starprof.model import env

NATIVE_STEPS = 8
"""Native steps that must have been seen before the loop's habits are judged."""
FREQUENT = 0.5
"""Share of steps with a collective of the user's own from which on rounds are of no use."""
SYNCHRONISATIONS_PER_STEP = 1.5
"""More tell a loop that accumulates gradients; the first steps, before optimizers are known, are not counted."""
OWN_COLLECTIVES = (*COLLECTIVES, "new_group", "split_group")
FUNCTIONAL = (
    "all_gather_single",
    "all_gather_tensor",
    "all_gather_tensor_autograd",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "all_to_all_single_autograd",
    "broadcast",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd",
)
FSDP = "torch.distributed.fsdp."
PAIR = 2
"""A device mesh and one of its dimensions stand for a group."""
DATA_PARALLEL = frozenset({"dp", "ddp", "data", "data_parallel", "dp_replicate", "replicate", "replica"})
"""Names of mesh dimensions along which models are copies of each other."""


@dataclass(slots=True)
class Seen:
    """What the engine has counted in native steps.

    Attributes:
        steps: iterations that ended with a step of the optimizer.
        synchronisations: backward passes that reduced gradients.
        steps_with_collectives: steps with at least one collective of the user's own in the loop, not between epochs.
        may_call: a collective that the loop's code names, though it was not called yet; None: there is none.
        epochs: that were seen from the first step to the last.
        counted_together: the loop takes its count from `starprof.steps`, so it comes to the same collectives on all
            ranks though some of them pass over iterations.
        collectives: the user's own, by name.
        models: DistributedDataParallel modules in this process.
        mesh_dimensions: names in the device meshes of the job.
        batches: why batches can't be skipped, None if they can.
        updating: why updates can't be replayed, None if they can.
    """

    steps: int = 0
    synchronisations: int = 0
    steps_with_collectives: int = 0
    may_call: str | None = None
    epochs: int = 0
    counted_together: bool = False
    collectives: dict[str, int] = field(default_factory=dict)
    models: int = 1
    mesh_dimensions: tuple[str, ...] = ()
    batches: str | None = None
    updating: str | None = None


def reasons(
    ddp_module: nn.Module, optimizers: Sequence[Optimizer], seen: Seen, *, accelerators: bool = False
) -> list[str]:
    """Everything that makes rounds impossible.

    Args:
        ddp_module: the model as it is trained.
        optimizers: of the model.
        seen: in native steps.
        accelerators: whether models on CUDA devices are allowed.

    Returns:
        One sentence each; empty if rounds are possible.
    """
    sharded = _sharding(ddp_module)
    if sharded is not None:
        return [sharded]
    if not isinstance(ddp_module, DistributedDataParallel):
        return ["the model isn't in DistributedDataParallel, whose gradients rounds are made of; wrap it"]
    found = [
        *_of_ranks(ddp_module, seen),
        *_of_reduction(ddp_module),
        *_of_parameters(ddp_module, optimizers),
        *of_any_model(ddp_module, optimizers, seen, accelerators=accelerators),
    ]
    return list(dict.fromkeys(found))


def of_any_model(
    model: nn.Module, optimizers: Sequence[Optimizer], seen: Seen, *, accelerators: bool = False
) -> Iterator[str]:
    """What makes rounds impossible however the model is spread over ranks; see `reasons`."""
    yield from _of_devices(model, accelerators)
    yield from _of_optimizers(optimizers)
    yield from _of_loop(seen)


def notes(ddp_module: DistributedDataParallel) -> list[str]:
    """What is allowed and worth knowing."""
    if ddp_module.find_unused_parameters:
        return [
            "find_unused_parameters is on: in rounds a parameter that no contributor has used keeps no gradient, as in "
            "native steps"
        ]
    return []


def _sharding(model: nn.Module) -> str | None:
    """FSDP and its like: a shard's owner can't be left behind."""
    only = "only resource actions are possible here"
    for module in model.modules():
        names = {f"{cls.__module__}.{cls.__name__}" for cls in type(module).__mro__}
        if any(n.startswith("torch.distributed.fsdp.") and n.endswith(".FullyShardedDataParallel") for n in names):
            strategy = str(getattr(module, "sharding_strategy", "")).rpartition(".")[2]
            if strategy.startswith(("HYBRID", "_HYBRID")):
                return f"the model is in FSDP with {strategy}: {only}; its replicas are the ranks of equal local rank"
            return f"the model is in FSDP, where every rank owns a part of each parameter: {only}"
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is None:
            continue
        dimensions = mesh.mesh_dim_names or tuple(str(place) for place in range(mesh.ndim))
        copies = [n for n, p in zip(dimensions, parameter.placements, strict=True) if p.is_replicate()]
        if copies and len(copies) < len(dimensions):
            return f"the parameters are sharded, with copies along mesh dimension {copies[0]!r} (HSDP): {only}"
        return f"the parameters are DTensors over mesh dimensions {', '.join(map(repr, dimensions))}: {only}"
    return None


def _of_ranks(ddp: DistributedDataParallel, seen: Seen) -> Iterator[str]:
    if seen.models > 1:
        yield f"there are {seen.models} DistributedDataParallel modules in this process; rounds work with one"
    others = [name for name in seen.mesh_dimensions if name.lower() not in DATA_PARALLEL]
    if others:
        yield (
            f"the job has a device mesh with {', '.join(map(repr, others))}: ranks hold parts of a model and can't go "
            "on without each other; use plain data parallelism"
        )
    if dist.get_world_size() == 1:
        yield "there is one rank only: nobody to wait for"
    elif dist.get_process_group_ranks(ddp.process_group) != list(range(dist.get_world_size())):
        yield "DistributedDataParallel has a process group that is not the whole world; leave process_group away"


def _of_reduction(ddp: DistributedDataParallel) -> Iterator[str]:
    hook = _communication_hook(ddp)
    if hook:
        yield f"DDP has the communication hook {hook}, which rounds would pass by; register none for rounds"
    if ddp._delay_all_reduce_params:
        yield "delay_all_reduce_named_params reduces some gradients on its own; leave it away"
    elif ddp.parameters_to_ignore:
        yield (
            f"DDP ignores {len(ddp.parameters_to_ignore)} parameters or buffers (first: "
            f"{min(ddp.parameters_to_ignore)}), which would differ between ranks; let it have all"
        )
    if ddp._join_config.enable:
        yield "the loop is in a Join context, which calls a collective in every step; leave it away for rounds"
    if ddp._use_python_reducer:
        yield "DDP uses its Python reducer; set torch._dynamo.config.optimize_ddp to another mode"
    if ddp.mixed_precision is not None:
        yield "DDP's own mixed_precision reduces gradients through a hook; use torch.autocast"
    for name, module in ddp.module.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            yield f"SyncBatchNorm ({name}) waits for all ranks in every forward pass; use BatchNorm"
            break


def _communication_hook(ddp: DistributedDataParallel) -> str:
    """The name of the hook, "" if there is none. Hooks in C++ are known to DDP's logger only."""
    if ddp._comm_hooks:
        hook = ddp._comm_hooks[0][0]
        return str(getattr(hook, "__qualname__", type(hook).__name__))
    return str(ddp._get_ddp_logging_data().get("comm_hook", ""))


def _of_parameters(ddp: DistributedDataParallel, optimizers: Sequence[Optimizer]) -> Iterator[str]:
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in ddp.module.named_parameters():
        if not parameter.requires_grad and id(parameter) not in held:
            continue
        if not parameter.is_floating_point():
            yield f"parameter {name} is {parameter.dtype}; rounds reduce real floating-point gradients only"
            break
    for name, module in ddp.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            yield f"{name or type(module).__name__} has sparse gradients; make it with sparse=False"
            break
    else:
        if any(p.grad is not None and p.grad.is_sparse for p in ddp.module.parameters()):
            yield "some gradients are sparse; rounds reduce dense ones only"
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp.module.parameters()):
        yield "an optimizer steps inside of the backward pass; step it in the loop"


def _of_devices(model: nn.Module, accelerators: bool) -> Iterator[str]:
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        yield f"the model is spread over {', '.join(sorted(map(str, devices)))}; rounds need it on one device"
    types = {device.type for device in devices}
    if "cuda" in types and not accelerators:
        yield f"the model is on a GPU, where rounds are untested; set {env.CONTROL_GPU}=1 to try them"
    unknown = sorted(types - {"cpu", "cuda"})
    if unknown:
        yield f"the model is on {unknown[0]}; rounds know CPU and CUDA devices"


def _of_optimizers(optimizers: Iterable[Optimizer]) -> Iterator[str]:
    for optimizer in optimizers:
        for cls in type(optimizer).__mro__:
            if cls.__module__.partition(".")[0] in ("deepspeed", "fairscale", "apex", "megatron") or (
                cls.__module__.startswith("torch.distributed.")
            ):
                yield f"{cls.__name__} calls collectives in its step; use an optimizer of torch.optim"
                break


def _of_loop(seen: Seen) -> Iterator[str]:
    if seen.batches:
        yield seen.batches
    if seen.updating:
        yield seen.updating
    if seen.steps < NATIVE_STEPS:
        return
    if seen.synchronisations > SYNCHRONISATIONS_PER_STEP * seen.steps:
        yield (
            f"gradients are reduced {seen.synchronisations / seen.steps:.1f} times per optimizer step; accumulate "
            "inside of no_sync()"
        )
    yield from of_collectives(seen)


def of_collectives(seen: Seen) -> Iterator[str]:
    """What speaks against rounds in the collectives that the loop calls by itself."""
    name = max(seen.collectives, key=lambda name: seen.collectives[name], default="a collective")
    if seen.steps_with_collectives > FREQUENT * seen.steps:
        yield (
            f"the loop itself calls {name} in most steps, which waits for all ranks; call it every hundredth step or "
            "outside of the loop"
        )
    elif seen.steps_with_collectives and not seen.counted_together:
        yield (
            f"the loop itself calls {name} by a count of its own, which is another one on a rank that passes over "
            "iterations; take the count from starprof.steps, or call it outside of the loop"
        )
    elif seen.may_call and not seen.epochs and not seen.counted_together:
        yield (
            f"the loop may call {seen.may_call} by a count of its own; if it does not in the first epoch, rounds are "
            "possible from the second one on, and at once with starprof.steps"
        )


class UserCollectives:
    """Counts the collectives that the training thread's own code calls, and tells before each.

    Those of DDP are made in C++, and those that FSDP makes are none of the user's; inside of `ours` none counts. One
    that another calls is no second one.

    Attributes:
        island: ranks that go everywhere together: what is among them only, nobody else waits for.
    """

    def __init__(self, guard: Guard, before: Callable[[str], None], allow: Callable[[], None] = lambda: None) -> None:
        """Prepare.

        Args:
            guard: takes whatever goes wrong in here.
            before: called with the collective's name before it begins; may wait for other ranks.
            allow: called after that; raises where the others will not come to the collective.
        """
        self.island: frozenset[int] = frozenset()
        self._guard = guard
        self._before = before
        self._allow = allow
        self._here = local()
        self._thread = 0
        self._called: dict[str, int] = {}
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Put the wrappers in, for the calling thread."""
        self._thread = get_ident()
        if not dist.is_available():
            return
        from torch.distributed import distributed_c10d

        for name in OWN_COLLECTIVES:
            self._wrap(distributed_c10d, name)
        self._wrap_constructor()
        after_import("torch.distributed._functional_collectives", self._wrap_functional)

    def restore(self) -> None:
        """Take them off."""
        self._thread = 0
        while self._undo:
            self._undo.pop()()

    def take(self) -> dict[str, int]:
        """How often each was called since the last time. To be asked by the training thread, whose calls count."""
        self._thread = get_ident()
        called, self._called = self._called, {}
        return called

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What this thread calls in here is none of the user's."""
        self._here.depth = getattr(self._here, "depth", 0) + 1
        try:
            yield
        finally:
            self._here.depth -= 1

    def _wrap_functional(self, module: ModuleType) -> None:
        for name in FUNCTIONAL:
            self._guard.attempt(self._wrap, module, name)

    def _wrap(self, module: Any, name: str) -> None:
        original = getattr(module, name, None)
        if original is None:
            return
        place = list(inspect.signature(original).parameters)
        position = place.index("group") if "group" in place else -1

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or get_ident() != self._thread or getattr(self._here, "depth", 0):
                return original(*args, **kwargs)
            if str(sys._getframe(1).f_globals.get("__name__")).startswith(FSDP):
                return original(*args, **kwargs)
            self._guard.attempt(self._tell, name, position, args, kwargs)
            self._allow()
            with self.ours():
                return original(*args, **kwargs)

        replace_everywhere(original, wrapper)
        self._undo.append(lambda: replace_everywhere(wrapper, original))

    def _wrap_constructor(self) -> None:
        original = DistributedDataParallel.__init__

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            with self.ours():
                original(*args, **kwargs)

        def undo() -> None:
            if DistributedDataParallel.__init__ is wrapper:
                DistributedDataParallel.__init__ = original

        DistributedDataParallel.__init__ = wrapper
        self._undo.append(undo)

    def _tell(self, name: str, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        group = kwargs.get("group", args[position] if 0 <= position < len(args) else None)
        if name == "batch_isend_irecv":
            operations = args[0] if args else kwargs["p2p_op_list"]
            group = operations[0].group if operations else None
        if not dist.is_initialized() or _size(group) < 2 or (self.island and self.island.issuperset(_ranks(group))):
            return
        self._called[name] = self._called.get(name, 0) + 1
        self._before(name)


def _size(group: Any) -> int:
    """How many ranks take part; less than one if this one doesn't. Functional ones name groups in other ways."""
    if group is None or isinstance(group, dist.ProcessGroup):
        return int(dist.get_world_size(group))
    return int(dist.get_world_size())


def _ranks(group: Any) -> list[int]:
    """Who takes part."""
    if isinstance(group, tuple) and len(group) == PAIR and hasattr(group[0], "get_group"):
        group = group[0].get_group(group[1])
    if isinstance(group, dist.ProcessGroup):
        return list(dist.get_process_group_ranks(group))
    return list(range(dist.get_world_size()))
