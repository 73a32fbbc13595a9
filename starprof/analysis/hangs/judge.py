"""Verdict on a job that stands still: which ranks never joined the call in which the others wait.

Dumps of such a job show pending calls, never their end; so nothing here is a slowness, and nothing ever passes for
healthy. A rank is named only when its own record shows that it holds the others up; where records are missing,
outdated or point at nobody, the verdict says what would tell.
"""

from __future__ import annotations

from dataclasses import replace

from starprof.analysis.causes.base import rank_names
from starprof.analysis.hangs.mismatch import Mismatch, mismatches
from starprof.analysis.hangs.waits import Call, Waits, waits
from starprof.analysis.hangs.xids import told_of
from starprof.analysis.settings import Settings
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.model.verdict import Finding, Verdict

MAX_LINES = 6
SURE = 0.95
FAIRLY_SURE = 0.85
LOOK_AT = "py-spy dump of the process, the end of its log, XID messages in dmesg of its host"
MOMENT = "A dump shows one moment: if the job was still running then, take another one a minute later and compare."


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:  # noqa: ARG001 - the judges' contract
    """`hang` with the ranks that hold the job up, or `inconclusive`; None when no states of calls were recorded.

    Args:
        run: an imported run.
        settings: not used: a call is pending or it is not.
        empty: the verdict to fill in.
    """
    table = run.collectives
    if table is None or len(run.steps.steps):
        return None
    if not table["state"].notna().any():
        return None
    found = waits(table)
    if not found.calls:
        return _nothing_pending(run, empty, found)
    wrong = mismatches(table)
    if wrong:
        return _hang(empty, tuple(_mismatched(run, one) for one in wrong[:MAX_LINES]))
    if found.missing:
        circles = (_circle(run, found, ranks) for ranks in found.circles[:MAX_LINES])
        return _hang(empty, (_missing(run, found), *circles))
    return _nobody(run, empty, found)


def _nothing_pending(run: RunData, empty: Verdict, found: Waits) -> Verdict | None:
    table = run.collectives
    if table is not None and table["dur_us"].notna().any():
        return None  # how long the calls took says more
    stale = f" {_stale(found)}" if found.stale else ""
    where = "if the job stands still, it is not in a collective that was recorded."
    return replace(empty, reason=f"No rank has a call pending: {where}{stale}")


def _hang(empty: Verdict, findings: tuple[Finding, ...]) -> Verdict:
    worst = findings[0]
    at = worst.onset_step
    return replace(
        empty, verdict="hang", findings=findings, steps=None if at is None else (at, at), reason=worst.evidence[0]
    )


def _missing(run: RunData, found: Waits) -> Finding:
    """Ranks that hold the others up."""
    told, calls = _told_by(found)
    lines = [_missing_line(run, found, call, ranks) for call, ranks in told[:MAX_LINES]]
    if found.blind:
        lines.append(_blind_line(run, found.blind))
    idle = tuple(sorted(set(found.missing) - set(found.blind) - set(found.waiting)))
    if idle:
        lines.append(f"{rank_names(idle).capitalize()} {'has' if len(idle) == 1 else 'have'} no call pending.")
    shown = {rank for call in calls for rank in call.waiting} | set(found.missing)
    shown |= {rank for circle in found.circles for rank in circle}
    others = tuple(sorted(set(found.waiting) - shown))
    if others:
        lines.append(f"{rank_names(others).capitalize()} {_wait(others)} in other calls, in the end for the same.")
    hosts = _hosts(run, found.missing)
    if len(found.missing) > 1 and len(hosts) == 1 and _all_told(run, found.missing):
        lines.append(f"All of them are on {hosts[0]}.")
    driver = told_of(run, found.missing)
    lines += driver.lines
    lines += [_unknown(found.suspects)] if found.suspects else []
    lines += [_stale(found)] if found.stale else []
    doubt = found.suspects or found.stale or set(found.missing) - {r for _, ranks in told for r in ranks}
    step = next((call.step for call in calls if call.step is not None), None)
    return Finding(
        kind="one-off",
        cause=driver.cause or causes.MISSING_COLLECTIVE,
        ranks=found.missing,
        nodes=hosts,
        cause_share=1.0,
        confidence=FAIRLY_SURE if doubt else SURE,
        onset_step=step,
        onset_interval=None if step is None else (step, step),
        evidence=tuple(lines),
        action=driver.action or f"See what {_who(run, found.missing)} did when it stopped: {LOOK_AT}.",
        verify="The numbers of the calls must go on rising on all ranks.",
        next=MOMENT,
    )


def _told_by(found: Waits) -> tuple[list[tuple[Call, tuple[int, ...]]], list[Call]]:
    """The earliest call that shows each missing rank, and these calls."""
    left = set(found.missing)
    told = []
    for call in sorted(found.calls, key=lambda call: call.sequence is None):  # groups tell more than single ends
        here = tuple(sorted(left & set(call.missing)))
        if here:
            told.append((call, here))
            left -= set(here)
    return told, [call for call, _ in told]


def _missing_line(run: RunData, found: Waits, call: Call, ranks: tuple[int, ...]) -> str:
    who = _who(run, ranks)
    first = f"{rank_names(call.waiting).capitalize()} {_wait(call.waiting)} in {_call(call)}"
    if call.sequence is None:
        return f"{first}; {who} did not come to the other end of it."
    if call.held:
        return f"{first}; {who} scheduled it too, but {_its(ranks)} device never started it."
    last = sorted({found.last[call.group, rank] for rank in ranks if (call.group, rank) in found.last})
    told = ", ".join(str(number) if number else "none" for number in last[:3])
    return f"{first}, which {who} never joined; the last call joined there: {told}."


def _blind_line(run: RunData, ranks: tuple[int, ...]) -> str:
    one = len(ranks) == 1
    return (
        f"{_capital(_who(run, ranks))} took part in calls that others have completed, but in {_its(ranks)} own "
        f"record{'' if one else 's'} earlier calls of the same group are still pending: {'it' if one else 'they'} no "
        "longer see"
        + ("s" if one else "")
        + f" the work of {_its(ranks)} own device (device error, or a stuck process)."
    )


def _mismatched(run: RunData, wrong: Mismatch) -> Finding:
    """Members that called different things."""
    made = "; ".join(f"{_who(run, ranks)}: {what}" for what, ranks in wrong.made[:MAX_LINES])
    odd = wrong.odd
    return Finding(
        kind="one-off",
        cause=causes.MISMATCHED_COLLECTIVE,
        ranks=odd,
        nodes=_hosts(run, odd),
        cause_share=1.0,
        confidence=FAIRLY_SURE,
        evidence=(f"Call {wrong.sequence} of {wrong.group} differs between its members: {made}.",),
        action="Find the branch of the program in which these ranks make different calls, or pass tensors of "
        "different size.",
        verify="All members must make the same call under the same number.",
        next="" if odd else "Whose call is the wrong one, only the program can tell.",
    )


def _nobody(run: RunData, empty: Verdict, found: Waits) -> Verdict:
    """The job stands still, and no rank's record shows that it holds the others up."""
    first = found.calls[0]
    if found.suspects:
        call = next((c for c in found.calls if set(c.unknown) & set(found.suspects)), first)
        line = (
            f"The job stands still: {rank_names(call.waiting)} {_wait(call.waiting)} in {_call(call)}, and what "
            f"{_who(run, found.suspects)} did is not known."
        )
        more = f"Get the dump of {_who(run, found.suspects)}, or look at {LOOK_AT}."
        lines = (line, *([_stale(found)] if found.stale else []))
        finding = Finding(kind="one-off", cause=causes.UNKNOWN, evidence=lines, next=more)
        return replace(empty, findings=(finding,), reason=line)
    if found.circles:
        return _hang(empty, tuple(_circle(run, found, ranks) for ranks in found.circles[:MAX_LINES]))
    line = (
        f"The job stands still: {rank_names(first.waiting)} {_wait(first.waiting)} in {_call(first)}, and for whom is "
        "not in the records."
    )
    more = "Record with a longer buffer (TORCH_FR_BUFFER_SIZE), and all calls rather than the pending ones only."
    finding = Finding(kind="one-off", cause=causes.UNKNOWN, evidence=(line,), next=more)
    return replace(empty, findings=(finding,), reason=line)


def _circle(run: RunData, found: Waits, ranks: tuple[int, ...]) -> Finding:
    """Ranks that wait for one another."""
    inside = [c for c in found.calls if c.waiting and set(c.waiting) <= set(ranks)]
    lines = [f"{rank_names(c.waiting).capitalize()} {_wait(c.waiting)} in {_call(c)}{_for(c)}." for c in inside]
    crossed = any(c.missing and c.sequence is not None for c in inside)
    if crossed:
        head = f"{rank_names(ranks).capitalize()} wait for one another, in calls of different groups."
        action = "Make the calls of all groups in the same order on all ranks."
    else:
        head = f"All of {rank_names(ranks)} have joined the calls in which they wait, and these don't end."
        action = f"Look at the devices of {rank_names(ranks)} and the links between them: {LOOK_AT}."
    return Finding(
        kind="one-off",
        cause=causes.MISSING_COLLECTIVE if crossed else causes.UNKNOWN,
        cause_share=1.0 if crossed else 0.0,
        confidence=FAIRLY_SURE,
        evidence=(head, *lines[:MAX_LINES], *told_of(run, ranks).lines),
        action=action,
        verify="The numbers of the calls must go on rising on all ranks.",
        next="" if crossed else "Record with TORCH_NCCL_ENABLE_TIMING=1: it shows whose device never started the call.",
    )


def _call(call: Call) -> str:
    step = "" if call.step is None else f" (step {call.step})"
    number = "" if call.sequence is None else f" {call.sequence}"
    return f"{call.name or 'call'}{number} of {call.group}{step}"


def _for(call: Call) -> str:
    return f", which {rank_names(call.missing)} did not join" if call.missing else ""


def _wait(ranks: tuple[int, ...]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _its(ranks: tuple[int, ...]) -> str:
    return "its" if len(ranks) == 1 else "their"


def _unknown(ranks: tuple[int, ...]) -> str:
    return f"What {rank_names(ranks)} did is not known: there may be more that hold the job up."


def _stale(found: Waits) -> str:
    return f"The record of {rank_names(found.stale)} is older than the others' and was left out."


def _hosts(run: RunData, ranks: tuple[int, ...]) -> tuple[str, ...]:
    names = {info.rank: info.host for info in run.ranks}
    return tuple(sorted({names[rank] for rank in ranks if names.get(rank)}))


def _all_told(run: RunData, ranks: tuple[int, ...]) -> bool:
    return set(ranks) <= {info.rank for info in run.ranks if info.host}


def _who(run: RunData, ranks: tuple[int, ...]) -> str:
    hosts = _hosts(run, ranks)
    return rank_names(ranks) + (f" ({', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''})" if hosts else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
