"""What a verdict must say besides: waits near the watchdog's limit, files that are never closed, the warm-up."""

from __future__ import annotations

from dataclasses import replace

from starprof.analysis.descriptors import leaks
from starprof.analysis.findings import Context
from starprof.analysis.reason import Found
from starprof.analysis.wait_limit import near_limit
from starprof.analysis.warm_up import warm_up_words

MOST_LEAKS = 3
LASTING = ("uniform", "trend", "chronic", "transient")


def with_remarks(context: Context, found: Found) -> tuple[Found, list[str]]:
    """The findings with the remarks that belong to them, and the sentences that belong to none.

    Args:
        context: what builders need.
        found: the findings, the most important first.
    """
    found, rest = _near_the_limit(context, found)
    found, more = _never_closed(context, found)
    return found, [*rest, *more, *warm_up_words(context.run, context.own)]


def _near_the_limit(context: Context, found: Found) -> tuple[Found, list[str]]:
    near = near_limit(context.run, context.own)
    if near is None:
        return found, []
    about = [i for i, (s, _) in enumerate(found) if near.column is not None and s.steps[near.column]]
    return _told(found, about, (near.words,))


def _never_closed(context: Context, found: Found) -> tuple[Found, list[str]]:
    leaking = leaks(context.counters)[:MOST_LEAKS]
    if not leaking:
        return found, []
    ranks = {leak.rank for leak in leaking}
    about = [
        i
        for i, (_, finding) in enumerate(found)
        if finding.kind in LASTING and (not finding.ranks or ranks & set(finding.ranks))
    ]
    return _told(found, about, tuple(leak.words() for leak in leaking))


def _told(found: Found, about: list[int], words: tuple[str, ...]) -> tuple[Found, list[str]]:
    """Put words to the first finding that they are about; without any they stand for themselves."""
    if not about:
        return found, list(words)
    slowness, finding = found[about[0]]
    told = replace(finding, evidence=(*finding.evidence, *words))
    return [*found[: about[0]], (slowness, told), *found[about[0] + 1 :]], []
