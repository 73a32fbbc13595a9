"""What the control socket answers: one JSON object for each that is asked, by `do`.

    status    what is going on
    mode      `mode`, `options`, `by`, `reason`: move the job
    freeze    `by`: the mode stays as it is until `unfreeze`
    advise    `holder`, `serial`, `lease_s`, `state`, `mode`, `options`, `reason`, `after`: see `advised`; answers like
              `status`, with what is new of the training's health after that number
    history   `last`: switches and the newest updates
    gone      `rank`: its process has ended, its launcher says

Answers have `ok`; where it is false `error` is one line, and `usage` tells whether the question itself was wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from starprof.control import modes
from starprof.control.coordinator.questions import SCHEMA, advice_of, options_of, words, write_down
from starprof.control.coordinator.record import KEPT
from starprof.control.coordinator.service import Service
from starprof.errors import StarprofError, UsageError
from starprof.sync.protocol.membership import RankState


def answer(service: Service, question: Mapping[str, Any]) -> dict[str, Any]:
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


def _status(service: Service, question: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    record, coordinator = service.record, service.coordinator
    last = record.switches[-1] if record.switches else None
    return {
        **_mode_now(service),
        "home": modes.NATIVE_NAME,
        "frozen_by": service.frozen or None,
        "operator": service.advised.operator or None,
        "advisor": service.advised.state or None,
        "refused": coordinator.refused or None,
        "epoch": coordinator.epoch,
        "version": record.version,
        "updates": record.updates,
        "rounds_per_s": round(record.rounds_per_s(), 3),
        "refused_connections": service.refused,
        "held_by": list(service.held),
        "last_switch": last.to_json() if last is not None else None,
        "noise": _noise(service),
        "ranks": _ranks(service),
    }


def _noise(service: Service) -> dict[str, Any] | None:
    """The gradient noise scale in batches of one rank; an end that is not known is None."""
    now = service.noise.estimate
    if now is None:
        return None
    values = {"scale": now.scale, "low": now.low, "high": now.high}
    finite = {name: float(f"{value:.6g}") if math.isfinite(value) else None for name, value in values.items()}
    return {**finite, "updates": now.updates}


def _mode_now(service: Service) -> dict[str, Any]:
    return {
        "mode": service.in_force.name,
        "options": dict(service.in_force.options),
        "wish": service.wish.name,
        "wish_options": dict(service.wish.options),
        "state": service.state,
        "refusals": [{"rank": rank, "reasons": list(told)} for rank, told in sorted(service.refusals.items())],
    }


def _ranks(service: Service) -> list[dict[str, Any]]:
    record, shares = service.record, service.record.shares()
    slow = service.coordinator.transfers.slow
    result = []
    for rank, known in service.coordinator.ranks.items():
        result.append(
            {
                "rank": rank,
                "state": _state_of(known),
                "held": known.held,
                "lag": max(0, record.version - known.held),
                "last_arrival_s": service.since_arrival_s(rank),
                "contributions": record.contributions[rank],
                "share": round(shares.get(rank, 0.0), 4),
                "extra_transfer_s": round(slow.get(rank, 0.0), 4),
            }
        )
    return result


def _state_of(known: RankState) -> str:
    if known.lost:
        return "behind" if known.behind and known.connected else "lost"
    return "left" if known.left else "connected" if known.connected else "disconnected"


def _mode(service: Service, question: Mapping[str, Any]) -> dict[str, Any]:
    options = options_of(question)
    coordinator = service.coordinator
    # Groups are of all ranks, also of those that are lost; other options make sense for those who are there.
    ranks = coordinator.ranks if options and "groups" in options else coordinator.live
    wanted = modes.mode(str(question.get("mode")), options, ranks)
    by = words(question, "by", "user") or "user"
    service.want(wanted, by, words(question, "reason", ""))
    service.overrule(by)
    return _mode_now(service)


def _advise(service: Service, question: Mapping[str, Any]) -> dict[str, Any]:
    """An advisor's word; where it is not let have its way, the answer says why and the rest all the same."""
    word, after = advice_of(question, lambda name, options: modes.mode(name, options, service.coordinator.live))
    denied = None
    try:
        service.advise(word)
    except StarprofError as error:
        denied = str(error)
    asked_by = service.asked_by
    return {**_status(service, question), "denied": denied, "asked_by": asked_by, "health": service.health.after(after)}


def _freeze(service: Service, question: Mapping[str, Any]) -> dict[str, Any]:
    service.freeze(words(question, "by", "user") or "user")
    return {"frozen_by": service.frozen}


def _unfreeze(service: Service, question: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    service.freeze("")
    return {"frozen_by": None}


def _history(service: Service, question: Mapping[str, Any]) -> dict[str, Any]:
    last = question.get("last", 20)
    if type(last) is not int or not 0 < last <= KEPT:
        raise UsageError(f"last is a number of updates, up to {KEPT}")
    record = service.record
    return {"switches": [switch.to_json() for switch in record.switches], "updates": record.last(last)}


def _gone(service: Service, question: Mapping[str, Any]) -> dict[str, Any]:
    rank = question.get("rank")
    if type(rank) is not int or rank not in service.coordinator.ranks:
        raise UsageError("rank is one of this job's")
    service.gone(rank)
    return {"rank": rank}


_DEEDS: dict[str, Callable[[Service, Mapping[str, Any]], dict[str, Any]]] = {
    "status": _status,
    "mode": _mode,
    "advise": _advise,
    "freeze": _freeze,
    "unfreeze": _unfreeze,
    "history": _history,
    "gone": _gone,
}
