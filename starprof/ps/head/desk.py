"""What the control socket of a parameter server answers: as a coordinator's does, and about its shards.

status    what is going on; `shards`, `staleness` and `dropped` beside what a coordinator tells
mode      `mode`, `options`, `by`, `reason`: move the job
freeze    `by`: the mode stays as it is until `unfreeze`
advise    see `control.coordinator.desk`
history   `last`: switches and the newest updates
gone      `rank`: its process has ended, its launcher says
move      `shard`, `to`: hand a shard over to a spare process, at a host or HOST:PORT, or to any
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from starprof.control.coordinator.questions import SCHEMA, advice_of, options_of, words, write_down
from starprof.control.coordinator.record import KEPT
from starprof.control.modes import Mode
from starprof.errors import StarprofError, UsageError
from starprof.ps.head import modes
from starprof.ps.head.service import HeadService


def answer(service: HeadService, question: Mapping[str, Any]) -> dict[str, Any]:
    """Do what is asked, and say what came of it."""
    do = _DEEDS.get(str(question.get("do")))
    try:
        if do is None:
            raise UsageError(f"there is nothing to do that is called {str(question.get('do'))[:40]!r}")
        said = {"ok": True, "schema": SCHEMA, **do(service, question)}
    except StarprofError as error:
        said = {"ok": False, "schema": SCHEMA, "error": str(error), "usage": isinstance(error, UsageError)}
    write_down(service.settings.segments, question, said)
    return said


def _status(service: HeadService, question: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    record = service.record
    last = record.switches[-1] if record.switches else None
    return {
        **_mode_now(service),
        "home": modes.DEFAULT.name,
        "frozen_by": service.memory.frozen_by or None,
        "operator": service.advised.operator or None,
        "advisor": service.advised.state or None,
        "refused": None,
        "epoch": service.memory.epoch,
        "version": service.deciding.version,
        "updates": record.updates,
        "rounds_per_s": round(record.rounds_per_s(), 3),
        "refused_connections": service.hub.refused if service.hub is not None else 0,
        "held_by": [],
        "last_switch": last.to_json() if last is not None else None,
        "noise": None,
        "ranks": _ranks(service),
        "shards": _shards(service),
        "spares": [f"{seat.report.host}:{seat.report.port}" for seat in service.shards.spares],
        "staleness": {str(one): count for one, count in sorted(service.deciding.staleness.items())},
        "dropped": service.deciding.dropped,
    }


def _mode_now(service: HeadService) -> dict[str, Any]:
    return {
        "mode": service.in_force.name,
        "options": dict(service.in_force.options),
        "wish": service.wish.name,
        "wish_options": dict(service.wish.options),
        "state": "gathering" if service.deciding.policy is None else "rounds",
        "refusals": [],
    }


def _ranks(service: HeadService) -> list[dict[str, Any]]:
    shares = service.record.shares()
    now_s = time.monotonic()
    return [
        {
            "rank": rank,
            "state": seat.state,
            "held": service.deciding.version,
            "lag": 0,
            "last_arrival_s": None if seat.arrived_s is None else round(now_s - seat.arrived_s, 3),
            "contributions": seat.contributions,
            "share": round(shares.get(rank, 0.0), 4),
            "extra_transfer_s": 0.0,
            "iteration_s": None if seat.own_s is None else round(seat.own_s, 6),
        }
        for rank, seat in sorted(service.workers.items())
    ]


def _shards(service: HeadService) -> list[dict[str, Any]]:
    now_s = time.monotonic()
    return [
        {
            "shard": number,
            "at": f"{seat.report.host}:{seat.report.port}",
            "process": seat.report.run,
            "state": "disconnected" if seat.line is None else "moving" if seat.moving_to is not None else "connected",
            "heard_s": round(now_s - seat.heard_s, 3),
            "behind": service.deciding.serial - service.deciding.done_by(number),
        }
        for number, seat in sorted(service.shards.seats.items())
    ]


def _mode(service: HeadService, question: Mapping[str, Any]) -> dict[str, Any]:
    by = words(question, "by", "user") or "user"
    service.want(_wanted(service, str(question.get("mode")), options_of(question)), by, words(question, "reason", ""))
    service.overrule(by)
    return _mode_now(service)


def _wanted(service: HeadService, name: str, options: dict[str, Any] | None) -> Mode:
    policy = service.deciding.policy
    return modes.mode(name, options, policy.members if policy is not None else range(service.settings.workers))


def _advise(service: HeadService, question: Mapping[str, Any]) -> dict[str, Any]:
    """An advisor's word; where it is not let have its way, the answer says why and the rest all the same."""
    said, _ = advice_of(question, lambda name, options: _wanted(service, name, options))
    denied = None
    try:
        service.advise(said)
    except StarprofError as error:
        denied = str(error)
    return {**_status(service, question), "denied": denied, "asked_by": service.memory.asked_by, "health": []}


def _freeze(service: HeadService, question: Mapping[str, Any]) -> dict[str, Any]:
    service.freeze(words(question, "by", "user") or "user")
    return {"frozen_by": service.memory.frozen_by}


def _unfreeze(service: HeadService, question: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    service.freeze("")
    return {"frozen_by": None}


def _history(service: HeadService, question: Mapping[str, Any]) -> dict[str, Any]:
    last = question.get("last", 20)
    if type(last) is not int or not 0 < last <= KEPT:
        raise UsageError(f"last is a number of updates, up to {KEPT}")
    return {
        "switches": [switch.to_json() for switch in service.record.switches],
        "updates": service.record.last(last),
    }


def _gone(service: HeadService, question: Mapping[str, Any]) -> dict[str, Any]:
    rank = question.get("rank")
    if type(rank) is not int or rank not in service.workers:
        raise UsageError("rank is one of this job's")
    service.gone(rank)
    return {"rank": rank}


def _move(service: HeadService, question: Mapping[str, Any]) -> dict[str, Any]:
    shard = question.get("shard")
    if type(shard) is not int:
        raise UsageError("shard is a number")
    return service.shards.move(shard, words(question, "to", ""))


_DEEDS: dict[str, Callable[[HeadService, Mapping[str, Any]], dict[str, Any]]] = {
    "status": _status,
    "mode": _mode,
    "freeze": _freeze,
    "unfreeze": _unfreeze,
    "advise": _advise,
    "history": _history,
    "gone": _gone,
    "move": _move,
}
