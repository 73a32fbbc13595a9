"""What makes rounds between islands impossible: each reason as one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.nn import Module
from torch.optim import Optimizer

from starprof.control.engine.dtensors import is_sharded
from starprof.control.engine.island.topology import groups
from starprof.control.engine.refusals import Seen, of_any_model


def reasons(model: Module, optimizers: Sequence[Optimizer], seen: Seen) -> list[str]:
    """Everything that makes rounds impossible for a model of islands.

    Args:
        model: the root of what is sharded.
        optimizers: of the model.
        seen: in native steps.

    Returns:
        One sentence each; empty if rounds are possible.
    """
    found = [*_of_reduction(model, seen), *_of_parameters(model), *of_any_model(model, optimizers, seen)]
    return list(dict.fromkeys(found))


def _of_reduction(model: Module, seen: Seen) -> Iterator[str]:
    if seen.models > 1:
        yield f"there are {seen.models} models with gradients to reduce in this process; rounds work with one"
    for group in groups(model):
        if group.gradient_divide_factor is not None:
            yield "set_gradient_divide_factor makes sums that rounds would weigh in another way; leave it away"
        if getattr(group, "_all_reduce_hook", None) is not None:
            yield "FSDP has an all-reduce hook, which rounds would pass by; set none for rounds"


def _of_parameters(model: Module) -> Iterator[str]:
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not is_sharded(parameter):
            yield f"parameter {name} isn't sharded by fully_shard, and nobody reduces its gradient; let it have all"
            return
        if not parameter.is_floating_point():
            yield f"parameter {name} is {parameter.dtype}; rounds reduce real floating-point gradients only"
            return
