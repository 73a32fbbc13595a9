"""Verdict on bandwidth tests of pairs: which place is bad, which are cleared, and what to test next.

A place is named when the slow pairs leave no other single explanation; where two are left, the next test is named that
tells them apart. Why a place is bad, such tests can't tell, nor whether the good ones are as good as they should be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from starprof.analysis.link_tests.places import Level, Pair, Places, labels_of, level_of, places_of
from starprof.analysis.settings import Settings
from starprof.model import causes
from starprof.model.collectives import UNKNOWN, kind
from starprof.model.rundata import RunData
from starprof.model.verdict import Finding, Verdict, VerdictKind

MAX_NAMED = 8
MAX_FINDINGS = 20
SURE = 0.95
FAIRLY_SURE = 0.8


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:  # noqa: ARG001 - the judges' contract
    """`straggler` with the bad places, `shared` for a slow path, `inconclusive` with the next test, or `none`.

    Args:
        run: an imported run.
        settings: not used: the good pairs' own spread is the measure.
        empty: the verdict to fill in.
    """
    if run.link_tests is None or len(run.link_tests) == 0:
        return None
    verdicts = [_of_one_test(name, tests, empty) for name, tests in _by_test(run.link_tests)]
    order = ("straggler", "shared", "inconclusive", "none")
    worst = min(verdicts, key=lambda verdict: order.index(verdict.verdict))
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    findings.sort(key=lambda finding: finding.cause == causes.UNKNOWN)
    return replace(worst, findings=tuple(findings[:MAX_FINDINGS]))


def _by_test(tests: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Rows of each kind of test: an all-reduce and an all-to-all reach different bandwidths on the same link."""
    kinds = tests["kind"].map(lambda label: kind(str(label)) if isinstance(label, str) else UNKNOWN)
    return [("" if what == UNKNOWN else str(what), part) for what, part in tests.groupby(kinds.astype(str))]


def _of_one_test(name: str, tests: pd.DataFrame, empty: Verdict) -> Verdict:
    level = level_of(tests)
    places = places_of(level)
    test = f"{name} tests" if name else "tests"
    if len(level.good) + len(level.slow) < 2:
        return replace(empty, reason=f"Fewer than two pairs with a result in the {test}: there is nothing to compare.")
    if level.unclear:
        return replace(
            empty,
            reason=f"The {test} of {len(level.good)} pairs spread from {_rate(min(level.good.values()))} to "
            f"{_rate(max(level.good.values()))} without a clear step: repeat them on idle machines.",
        )
    if not level.slow:
        return _alike(level, test, empty)
    if not level.good:
        return replace(
            empty,
            reason=f"No pair was quick throughout the {test}: there is nothing to compare the slow ones with; repeat "
            "the tests on idle machines.",
        )
    if places.many:
        return replace(
            empty,
            reason=f"Only {_pairs(list(level.good))} reach {_rate(max(level.good.values()))} in the {test}, most pairs "
            "do not: whether these are quick or all others slow can't be told.",
        )
    extra = _hypotheses(level, labels_of(tests))
    findings = [
        *(_bad(place, pairs, level, places, extra) for place, pairs in places.bad.items()),
        *([_path(level, places, extra)] if places.paths else []),
        *(_undecided(pair, level, places, extra) for pair in (*places.or_path, *places.either)),
    ]
    return _verdict(findings, places, level, empty)


def _verdict(findings: Sequence[Finding], places: Places, level: Level, empty: Verdict) -> Verdict:
    undecided = [*places.or_path, *places.either]
    parts = []
    if places.bad:
        parts.append(f"{_names(tuple(places.bad))} {'is' if len(places.bad) == 1 else 'are'} slow with every partner")
    if places.paths:
        parts.append(f"the path of {_pairs(places.paths)} is slow")
    if undecided:
        parts.append(f"of {_pairs(undecided)} it can't be told which end is slow")
    parts.append(f"cleared: {_names(places.cleared)}" if places.cleared else "no place is cleared")
    reason = "; ".join(parts)
    verdict: VerdictKind = "straggler" if places.bad else "shared" if places.paths and not undecided else "inconclusive"
    shown = tuple(findings[:MAX_FINDINGS])
    return replace(
        empty,
        verdict=verdict,
        findings=tuple(replace(f, slowdown=round(_slowdown(f.nodes, level), 4)) for f in shown),
        reason=reason[:1].upper() + reason[1:] + ".",
    )


def _alike(level: Level, test: str, empty: Verdict) -> Verdict:
    """All pairs are on one level."""
    low, high = min(level.good.values(), default=0.0), max(level.good.values(), default=0.0)
    told = f"All {len(level.good)} pairs reach {_rate(low)} to {_rate(high)} in the {test}"
    if level.mixed:
        pairs = list(level.mixed)
        return replace(
            empty,
            reason=f"{told}, but {_pairs(pairs)} did in some tests only.",
            findings=(
                Finding(
                    kind="one-off",
                    cause=causes.UNKNOWN,
                    evidence=(f"{_pairs(pairs)} reached the level of the others in some tests and not in others.",),
                    next=f"Repeat the test of {_pairs(pairs)} several times.",
                ),
            ),
        )
    if level.failed:
        return replace(empty, reason=f"{told}; {_pairs(level.failed)} gave no result.")
    return replace(
        empty,
        verdict="none",
        reason=f"{told}: no place stands out. Whether that is what the network should give, they don't tell.",
    )


def _bad(place: str, pairs: tuple[Pair, ...], level: Level, places: Places, extra: tuple[str, ...]) -> Finding:
    likely = place in places.likely
    good = max(level.good.values())
    rates = [level.slow[pair] for pair in pairs]
    partners = tuple(_other(pair, place) for pair in pairs)
    proof = tuple(p for p in partners if p in places.cleared)
    evidence = [
        f"{place} reaches {_span(rates)} with {_names(partners)}, where good pairs reach "
        f"{_span(list(level.good.values()))}."
    ]
    if proof:
        evidence.append(f"{_names(proof)} {'is' if len(proof) == 1 else 'are'} good with other partners.")
    if likely:
        evidence.append("None of its partners is cleared, but each of them would have to be slow by itself otherwise.")
    evidence += [f"Cleared: {_names(places.cleared)}.", *extra, *_remarks(level)]
    third = next((p for p in places.cleared if p not in partners), "another place")
    return Finding(
        kind="chronic",
        cause=causes.NIC_BANDWIDTH,
        nodes=(place,),
        cause_share=1.0,
        confidence=FAIRLY_SURE if likely or len(proof) < 2 else SURE,
        evidence=tuple(evidence),
        action=f"Check what connects {place}: adapter, cable, switch port, PCIe width. The tests don't tell which.",
        verify=f"A test of {place} with {proof[0] if proof else third} should reach {_rate(good)}.",
        next=f"Test {place} with {third} to confirm it." if likely else "",
    )


def _path(level: Level, places: Places, extra: tuple[str, ...]) -> Finding:
    rates = [level.slow[pair] for pair in places.paths]
    ends = tuple(sorted({place for pair in places.paths for place in pair}))
    return Finding(
        kind="chronic",
        cause=causes.NETWORK_PATH,
        nodes=ends if len(places.paths) == 1 else (),
        cause_share=1.0,
        confidence=FAIRLY_SURE,
        evidence=(
            f"{_pairs(places.paths)} reach{'es' if len(places.paths) == 1 else ''} {_span(rates)}, but all "
            f"these places reach {_span(list(level.good.values()))} elsewhere: the path between them is slow.",
            *extra,
            *_remarks(level),
        ),
        action="Check the path between them: switches, routes, rails.",
        verify=f"The pairs should reach {_rate(max(level.good.values()))}.",
        next=f"Repeat the test of {_pairs(places.paths)} to be sure of it.",
    )


def _undecided(pair: Pair, level: Level, places: Places, extra: tuple[str, ...]) -> Finding:
    rate = level.slow[pair] if pair in level.slow else level.slow[pair[1], pair[0]]
    first, second = pair
    start = f"{first}-{second} reaches {_rate(rate)}, where good pairs reach {_span(list(level.good.values()))}"
    thirds = [place for place in places.cleared if place not in pair]
    if second in places.cleared:
        told = f"{start}; {second} is cleared, so it is {first} or the path between them."
        wanted = f"Test {first} with {thirds[0]} next" if thirds else f"Test {first} with a third place next"
        after = f": if it is slow again, {first} is bad, else the path to {second}."
    else:
        told = f"{start}; neither place is in a good pair: {first} OR {second} is bad, which of them can't be told."
        wanted = f"Test {first} with {thirds[0]} next" if thirds else f"Test {first} and {second} with a third place"
        after = f": if it is slow, {first} is bad; if it is good, {second} or the path between them is."
    return Finding(
        kind="chronic",
        cause=causes.UNKNOWN,
        nodes=(first,) if second in places.cleared else (first, second),
        confidence=FAIRLY_SURE,
        evidence=(told, *extra, *_remarks(level)),
        action=f"Keep {first} and {second} apart from the job until it is known."
        if second not in places.cleared
        else "",
        next=wanted + after,
    )


def _hypotheses(level: Level, labels: Mapping[Pair, str]) -> tuple[str, ...]:
    """Whether what pairs are said to be, such as x-rack, explains which are slow."""
    lines = []
    for label in sorted(set(labels.values())):
        slow = [pair for pair in level.slow if labels.get(pair) == label]
        good = [pair for pair in level.good if labels.get(pair) == label]
        other_slow = [pair for pair in level.slow if labels.get(pair) != label]
        other_good = [pair for pair in level.good if labels.get(pair) != label]
        if slow and good:
            best = max(good, key=lambda pair: level.good[pair])
            lines.append(
                f'That "{label}" makes pairs slow is rejected: {"-".join(best)} is so too, and reaches '
                f"{_rate(level.good[best])}."
            )
        elif slow and other_good and not other_slow and len(slow) > 1:
            lines.append(f'All pairs that are "{label}" are slow, and no other pair is.')
    return tuple(lines[:MAX_NAMED])


def _remarks(level: Level) -> list[str]:
    lines = []
    if level.mixed:
        lines.append(f"{_pairs(list(level.mixed))} differed from test to test and were left out.")
    if level.failed:
        lines.append(f"{_pairs(level.failed)} gave no result.")
    return lines


def _slowdown(nodes: tuple[str, ...], level: Level) -> float:
    rates = [rate for pair, rate in level.slow.items() if set(nodes) & set(pair)] or list(level.slow.values())
    good = sorted(level.good.values())[len(level.good) // 2]
    return good / max(max(rates), good * 1e-3)


def _other(pair: Pair, place: str) -> str:
    return pair[1] if pair[0] == place else pair[0]


def _names(places: Sequence[str]) -> str:
    """A, B and C; the first of many."""
    shown = [str(place) for place in places[:MAX_NAMED]]
    if len(places) > MAX_NAMED:
        return f"{', '.join(shown)} and {len(places) - MAX_NAMED} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _pairs(pairs: Sequence[Pair]) -> str:
    return _names(["-".join(pair) for pair in pairs])


def _span(rates: Sequence[float]) -> str:
    low, high = _rate(min(rates)), _rate(max(rates))
    return high if low == high else f"{low} to {high}"


def _rate(bytes_per_s: float) -> str:
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= factor:
            return f"{bytes_per_s / factor:.4g} {unit}"
    return f"{bytes_per_s:.3g} B/s"
