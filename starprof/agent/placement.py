"""Completes what a rank says about its GPU with what the driver knows: the hook in the rank asks no driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starprof.collectors.gpu_map import DEVICE_ORDER, VISIBLE_DEVICES, AmbiguousDeviceError, Card, locate

_CUDA = "cuda:"


def placed(description: Mapping[str, Any], cards: Sequence[Card]) -> dict[str, Any]:
    """The rank's description with the full UUID of its GPU or MIG instance; where that can't be told, with why.

    Args:
        description: row of table `rank` as the hook wrote it; its `detail` holds the variables that choose devices.
        cards: the node's GPUs, empty when no driver can be asked.
    """
    completed = dict(description)
    device = str(description.get("device"))
    index = device.removeprefix(_CUDA)
    if not cards or not device.startswith(_CUDA) or not index.isdecimal():
        return completed
    detail = description.get("detail")
    facts: dict[str, Any] = dict(detail) if isinstance(detail, Mapping) else {}
    environ = {name: str(facts[name]) for name in (VISIBLE_DEVICES, DEVICE_ORDER) if facts.get(name) is not None}
    try:
        place = locate(cards, int(index), environ, description.get("gpu_uuid"))
    except AmbiguousDeviceError as error:
        completed["detail"] = {**facts, "gpu_unknown": str(error)}
        return completed
    if place.uuid is not None:
        completed["gpu_uuid"] = place.uuid
    elif place.reason:
        completed["detail"] = {**facts, "gpu_unknown": place.reason}
    return completed
