"""The sources' claims beside our figures, as markdown: what holds, and what does not.

Reductions of the time to accuracy are geometric means over the places in which somebody is slow, with intervals of 95 %
over places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np
from blocks import (
    PARITY,
    Block,
    Estimate,
    Record,
    blocks_of,
    final,
    fixed_in,
    keeps_accuracy,
    mean_over,
    pooled,
    ratio_to,
    reached,
    straggling,
)
from design import workers_in

PAPER = {"ps": (0.48, 0.84), "ring": (0.51, 0.70)}
"""Time to accuracy that STAR saves against its baselines (arXiv 2512.09685)."""
ITS_BASELINES = ("sync-switch", "lb-bsp", "lgc", "zeno++")
OTHERS = ("ssgd", "asgd", "backup", "ssp", "eager", "drop-compute", "rennala", "ringmaster")
NAMES = {"ps": "parameter server", "ring": "all-reduce"}
ABLATIONS = ("star static only", "star dynamic only", "star no prediction", "star paper exact")
REGRET, HARM = 0.05, 0.02
NOT_TESTED = "not tested"


def tell(records: Sequence[Record]) -> Iterator[str]:
    """All tables."""
    single = blocks_of(records)
    blocks = pooled(single)
    yield f"{len(records)} trainings, {len(single)} blocks of one seed, {len(blocks)} places with a task."
    yield ""
    yield from _table(("claim", "source", "here", "95 %", "places", "holds"), _claims(blocks, single))
    yield ""
    yield from _table(("against", "exchange", "time saved", "95 %", "blocks", "reached its target"), _against(single))
    yield ""
    headers = (
        "task",
        "who is slow",
        "exchange",
        "ssgd, s",
        "star",
        "star fresh",
        "best fixed mode",
        "its time",
        "asgd",
    )
    yield from _table(headers, _places(blocks))


def _table(headers: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headers)} |"
    yield "|" + "---|" * len(headers)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _claims(blocks: Sequence[Block], single: Sequence[Block]) -> Iterator[Sequence[str]]:
    for exchange, (least, most) in PAPER.items():
        saved = mean_over(straggling(single, exchange), _mean_ratio(ITS_BASELINES), log=True)
        source = f"{least:.0%} to {most:.0%} less than Sync-Switch, LB-BSP, LGC, Zeno++"
        yield _row(f"time to accuracy, {NAMES[exchange]}", source, saved and saved.map(_saved), _within(least, most))
    parity = mean_over(blocks, lambda b: _difference(b, "star"))
    yield _row(
        "accuracy at the end, against SSGD's, points", "the same", parity and parity.map(_points), _at_least(-0.2)
    )
    # Not all is run with every seed: these are told seed by seed, of the seeds that are there.
    with_fresh = [block for block in single if "star fresh" in block.by_method]
    fresh = mean_over(with_fresh, lambda b: _difference(b, "star fresh"))
    yield _row(
        "the same, points, if no stale gradients may be chosen", "-", fresh and fresh.map(_points), _at_least(-0.2)
    )
    for task, words in (("logistic", "plain SGD"), ("perceptron", "momentum"), ("cnn", "momentum")):
        those = [block for block in blocks if block.task == task]
        parity = mean_over(those, lambda b: _difference(b, "star"))
        yield _row(f"points, {task} ({words})", "the same", parity and parity.map(_points), _at_least(-0.2))
    given_up = mean_over(blocks, lambda b: _more_than(b, "star", PARITY))
    yield _row("places in which more than 0.2 points are given up", "none", given_up, _at_most(0.0))
    yield _row("the same of SSGD against SSGD with another seed", "luck", _luck_of_points(single), lambda _e: "-")
    for exchange in PAPER:
        saved = mean_over(straggling(single, exchange), ratio_to("star fresh", "ssgd"), log=True)
        name = f"time saved against SSGD without stale gradients, {NAMES[exchange]}"
        yield _row(name, "-", saved and saved.map(_saved), _above(0.0))
    before = mean_over(straggling(blocks), lambda b: b.by_method["ssgd"]["straggling"])
    yield _row("iterations of stragglers, SSGD", "about 15 %", before, lambda _e: "-")
    after = mean_over(straggling(blocks), lambda b: _of(b, "star", "straggling"))
    yield _row("the same, with the mode chosen", "under 3 %", after, _at_most(0.03))
    worse = mean_over(straggling(blocks), _asgd_is_worse)
    yield _row("ASGD is worse than SSGD, share of cases", "about 70 %", worse, _within(0.6, 0.8))
    learned = mean_over(straggling(single), ratio_to("star learned", "star"), log=True)
    yield _row(
        "time that the learned chooser saves over the heuristic",
        "about 5 %",
        learned and learned.map(_saved),
        _within(0.03, 1),
    )
    near = mean_over(straggling(blocks), _near_nine_tenths, log=True)
    yield _row("m-sync with m = 0.9 N: time against the best m", "close to 1", near, _at_most(1.05))
    for name in ABLATIONS:
        lost = mean_over(straggling(single), ratio_to(name, "star"), log=True)
        yield _row(f"time of {name.removeprefix('star ')}, of the whole's", "more than 1", lost, _above(1.0))
    for method, words in (("star", ""), ("star fresh", ", if no stale gradients may be chosen")):
        those = blocks if method == "star" else pooled(with_fresh)
        regret = mean_over(those, lambda b, method=method: _regret(b, method), log=True)
        name = f"time against the best mode in hindsight{words}"
        yield _row(name, "at most 1.05 (ours)", regret, _at_most(1.0 + REGRET))
        whole = mean_over(those, lambda b, method=method: _regret_of_whole(b, method), log=True)
        name = f"time of the whole training against the quickest mode within 0.2 points{words}"
        yield _row(name, "at most 1.05 (ours)", whole, _at_most(1.0 + REGRET))
    for name, luck in (("star", False), ("the mode itself against hindsight", True)):
        told = mean_over(single, _against_other_seeds(single, luck=luck), log=True)
        yield _row(f"time against the mode that is best with other seeds: {name}", "-", told, lambda _e: "-")
    harmed = mean_over(blocks, lambda b: _harmed(b))
    yield _row("places in which it is over 2 % slower than SSGD", "none (ours)", harmed, _at_most(0.0))
    costs = [r["choice_ms"] for b in blocks for r in b.by_method.values() if r.get("choice_ms")]
    if costs:
        yield ("a choice, median, ms", "-", f"{median(costs):.0f}", f"most {max(costs):.0f}", str(len(costs)), "-")


def _mean_ratio(baselines: Sequence[str]):
    """Geometric mean of the ratios to some baselines."""

    def value(block: Block) -> float | None:
        found = [ratio for name in baselines if (ratio := ratio_to("star", name)(block)) is not None]
        return math.exp(sum(map(math.log, found)) / len(found)) if found else None

    return value


def _saved(ratio: float) -> float:
    return 1.0 - ratio


def _points(difference: float) -> float:
    return 100.0 * difference


def _of(block: Block, method: str, name: str) -> float | None:
    record = block.by_method.get(method)
    return None if record is None else float(record[name])


def _difference(block: Block, method: str) -> float | None:
    record = block.by_method.get(method)
    return None if record is None else final(record) - final(block.by_method["ssgd"])


def _more_than(block: Block, method: str, limit: float) -> float | None:
    difference = _difference(block, method)
    return None if difference is None else float(difference < -limit - 1e-9)


def _asgd_is_worse(block: Block) -> float | None:
    return None if "asgd" not in block.by_method else float(block.time_s("asgd") > block.time_s("ssgd"))


def _near_nine_tenths(block: Block) -> float | None:
    times_s = {name: block.least_s(name) for name in block.by_method if name.startswith("m-sync ")}
    wanted = f"m-sync {round(0.9 * workers_in(block.scenario))}"
    return times_s[wanted] / min(times_s.values()) if wanted in times_s else None


def _regret(block: Block, method: str) -> float | None:
    """A mode that gives up accuracy at the end is not best in hindsight, however early it was near it."""
    best_s = min(block.time_s(name) for name in fixed_in(block) if keeps_accuracy(block, name))
    return block.least_s(method) / best_s if method in block.by_method and math.isfinite(best_s) else None


def _regret_of_whole(block: Block, method: str) -> float | None:
    """Of the time for all of the training, in which the luck of when an accuracy is reached has no part."""
    if method not in block.by_method:
        return None
    best_s = min(block.by_method[name]["end_s"] for name in fixed_in(block) if keeps_accuracy(block, name))
    return float(block.by_method[method]["end_s"]) / best_s


def _luck_of_points(single: Sequence[Block]) -> Estimate | None:
    """How often one seed of SSGD ends more than 0.2 points below another one of the same task, where nobody chose."""
    by_task: dict[tuple[str, int], dict[int, Block]] = {}
    for block in single:
        by_task.setdefault((block.task, workers_in(block.scenario)), {})[block.seed] = block
    pairs = [
        (one, other) for seeds in by_task.values() for one in seeds.values() for other in seeds.values() if one != other
    ]
    ends = {block.seed: block for block, _ in pairs}
    if len(ends) < 2:
        return None
    lower = {
        (one.task, one.scenario, one.seed, other.seed): float(
            final(one.by_method["ssgd"]) < final(other.by_method["ssgd"]) - PARITY - 1e-9
        )
        for one, other in pairs
    }
    return mean_over(
        [one for one, _ in pairs],
        lambda b: float(np.mean([v for key, v in lower.items() if key[:3] == (b.task, b.scenario, b.seed)])),
        unit=lambda b: (b.task, b.seed),
    )


def _against_other_seeds(single: Sequence[Block], *, luck: bool):
    """Of a block: time of star against the mode that was best with the place's other seeds.

    What is best with this very seed is partly luck, which nobody can choose by. With `luck`: what that mode itself
    loses against hindsight by it.
    """

    def value(block: Block) -> float | None:
        others = [
            b
            for b in single
            if b.seed != block.seed
            and (b.task, b.scenario, b.exchange) == (block.task, block.scenario, block.exchange)
            and "star" in b.by_method
        ]
        if not others or "star" not in block.by_method:
            return None
        (there,) = pooled(others)
        known = [name for name in fixed_in(there) if name in block.by_method and keeps_accuracy(there, name)]
        best = min(known, key=there.least_s, default=None)
        if best is None:
            return None
        if luck:
            hindsight_s = min(block.time_s(name) for name in fixed_in(block) if keeps_accuracy(block, name))
            return block.least_s(best) / hindsight_s if math.isfinite(hindsight_s) else None
        return block.least_s("star") / block.least_s(best)

    return value


def _harmed(block: Block) -> float | None:
    if "star" not in block.by_method:
        return None
    return float(block.time_s("star") > (1.0 + HARM) * block.time_s("ssgd"))


def _against(blocks: Sequence[Block]) -> Iterator[Sequence[str]]:
    for name in (*ITS_BASELINES, *OTHERS):
        for exchange in PAPER:
            those = straggling(blocks, exchange)
            saved = mean_over(those, ratio_to("star", name), log=True)
            if saved is not None:
                told = saved.map(_saved)
                yield (
                    name,
                    NAMES[exchange],
                    _share(told.value),
                    _interval(told),
                    str(told.blocks),
                    _share(reached(those, name)),
                )


def _places(blocks: Sequence[Block]) -> Iterator[Sequence[str]]:
    """Medians over the seeds, as parts of SSGD's time; with the difference of the accuracy at the end, in points."""
    places: dict[tuple[str, str, str], list[Block]] = {}
    for block in blocks:
        if "star" in block.by_method:
            places.setdefault((block.task, block.scenario, block.exchange), []).append(block)
    for (task, scenario, exchange), those in sorted(places.items()):
        methods = set.intersection(*({name for name in fixed_in(b) if keeps_accuracy(b, name)} for b in those))
        of = {name: median(b.time_s(name) / b.time_s("ssgd") for b in those) for name in methods}
        best = min(methods, key=of.__getitem__)
        yield (
            task,
            scenario,
            NAMES[exchange],
            f"{median(b.least_s('ssgd') for b in those):.1f}",
            *(_with_points(those, name) for name in ("star", "star fresh")),
            best,
            f"{of[best]:.2f}",
            _with_points(those, "asgd"),
        )


def _with_points(blocks: Sequence[Block], method: str) -> str:
    there = [block for block in blocks if method in block.by_method]
    if not there:
        return "-"
    ratio = median(block.time_s(method) / block.time_s("ssgd") for block in there)
    spent = median(block.least_s(method) / block.time_s("ssgd") for block in there)
    points = median(_points(final(b.by_method[method]) - final(b.by_method["ssgd"])) for b in there)
    return f"{ratio:.2f} ({points:+.1f})" if math.isfinite(ratio) else f"over {spent:.2f} ({points:+.1f})"


def _row(claim: str, source: str, found: Estimate | None, holds) -> Sequence[str]:
    if found is None:
        return (claim, source, NOT_TESTED, "-", "0", "-")
    say = _number if "points" in claim or "against" in claim or "of the whole" in claim else _share
    ends = f"{say(found.low)} to {say(found.high)}"
    return (claim, source, say(found.value), ends, str(found.blocks), holds(found))


def _within(least: float, most: float):
    def holds(found: Estimate) -> str:
        if found.low >= least:
            return "yes" if found.low <= most else "more than that"
        return "no" if found.high < least else "open"

    return holds


def _at_most(limit: float):
    return lambda found: "yes" if found.high <= limit + 1e-9 else "no" if found.low > limit + 1e-9 else "open"


def _at_least(limit: float):
    return lambda found: "yes" if found.low >= limit else "no" if found.high < limit else "open"


def _above(limit: float):
    return lambda found: "yes" if found.low > limit else "no" if found.high <= limit else "open"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _number(value: float) -> str:
    return f"{value:.2f}"


def _interval(found: Estimate) -> str:
    return f"{_share(found.low)} to {_share(found.high)}"
