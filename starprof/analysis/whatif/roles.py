"""What an operation is, told from its name: work of the rank itself, one end of a transfer, or a collective."""

from __future__ import annotations

import re
from enum import Enum


class Role(Enum):
    """Part that an operation plays in a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    LOCAL = "local"  # other work of the rank itself: optimizer, garbage collection, data loading
    FORWARD_SEND = "forward-send"
    FORWARD_RECV = "forward-recv"
    BACKWARD_SEND = "backward-send"
    BACKWARD_RECV = "backward-recv"
    STAGE = "stage"  # collective of all data-parallel ranks of a pipeline stage
    PIPELINE = "pipeline"  # collective of stages of one pipeline
    WORLD = "world"  # collective of all ranks
    INNER = "inner"  # collective of ranks that a trace does not tell apart: a tensor- or expert-parallel group

    @property
    def is_compute(self) -> bool:
        """Forward or backward pass of a micro-batch."""
        return self in (Role.FORWARD, Role.BACKWARD)

    @property
    def is_own(self) -> bool:
        """Takes no part in communication."""
        return self in (Role.FORWARD, Role.BACKWARD, Role.LOCAL)

    @property
    def is_transfer(self) -> bool:
        """One end of a send between pipeline stages."""
        return self in (Role.FORWARD_SEND, Role.FORWARD_RECV, Role.BACKWARD_SEND, Role.BACKWARD_RECV)

    @property
    def is_collective(self) -> bool:
        """Takes part in a collective."""
        return self in (Role.STAGE, Role.PIPELINE, Role.WORLD, Role.INNER)


_FORWARD, _BACKWARD = {"forward", "fwd"}, {"backward", "bwd"}
_RECEIVE = {"recv", "receive"}
_EXPERTS = {"ep", "expert", "experts", "moe"}
_INNER = {"layernorm", "tp", "sp", "cp", "tensor", "sequence", "context"} | _EXPERTS
_COLLECTIVE = re.compile(r"all-?(reduce|gather|to-?all)|reduce-?scatter|broadcast|barrier|all2all")


def role_of(name: str) -> Role:
    """Role of an operation; what no rule knows is work of the rank itself."""
    plain = name.lower().replace("_", "-")
    words = set(plain.split("-"))
    if _COLLECTIVE.search(plain):
        if words & _INNER:
            return Role.INNER
        return Role.PIPELINE if words & {"embedding", "embeddings"} else Role.STAGE
    if words & {"clip", "norm", "gradnorm"}:
        return Role.WORLD  # the norm of all gradients needs every rank
    way = "forward" if words & _FORWARD else "backward" if words & _BACKWARD else ""
    if way and "send" in words:
        return Role(f"{way}-send")
    if way and words & _RECEIVE:
        return Role(f"{way}-recv")
    return Role(way) if way else Role.LOCAL


def exchanges_tokens(name: str) -> bool:
    """Whether an operation is an exchange between ranks that hold different experts."""
    return role_of(name) is Role.INNER and bool(set(name.lower().replace("_", "-").split("-")) & _EXPERTS)


def type_of(name: str) -> str:
    """Operation type that shares are told of: both ends of a transfer are one."""
    role = role_of(name)
    return f"{role.value.split('-')[0]}-pp-comm" if role.is_transfer else name


def phase_of(name: str) -> str:
    """Phase of the step that an operation belongs to."""
    role = role_of(name)
    if role.is_compute:
        return role.value
    if role.is_transfer:
        return "pipeline communication"
    if role.is_collective:
        return "collectives"
    return "optimizer" if "optimizer" in name.lower() else "other work"
