"""Tables from results, as markdown: whether the goals are reached, and every way to synchronise beside the others.

Each figure is the median over the seeds, of ratios the median of the ratios within each seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from design import NATIVE, PLAIN, SWITCHES

Record = dict[str, Any]
Place = tuple[str, int, str]
"""Task, ranks, who is slow."""


class Found:
    """Results by cell."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.by_cell = {(r["task"], r["ranks"], r["slow"], r["how"], r["seed"]): r for r in records}

    def of(self, place: Place, how: str) -> dict[int, Record]:
        """Results by seed."""
        return {cell[4]: record for cell, record in self.by_cell.items() if cell[:4] == (*place, how)}

    def pairs(self, one: tuple[Place, str], other: tuple[Place, str]) -> list[tuple[Record, Record]]:
        """Results of the same seed."""
        ones, others = self.of(*one), self.of(*other)
        return [(ones[seed], others[seed]) for seed in sorted(ones.keys() & others.keys())]

    def switches(self, place: Place, kind: Callable[[Record], bool]) -> list[Record]:
        """All switches of a kind."""
        return [s for record in self.of(place, SWITCHES).values() for s in record["switches"] if kind(s)]


COLUMNS = (
    "task, ranks, who is slow",
    "synchronisation",
    "step, ms",
    "iteration, ms",
    "time to accuracy, s",
    "of native DDP's",
    "accuracy at the end, %",
    "slow rank's share",
    "staleness, mean, most",
    "replicas",
    "jobs",
)
PERSISTENT, HEALTHY, BUSY = ("digits", 4, "persistent"), ("digits", 4, "none"), ("digits", 2, "busy")


def own_ms(record: Record) -> float:
    """Own time of a step of the ranks that are not slow."""
    return float(median(record["own_ms"][:-1] or record["own_ms"]))


@dataclass(frozen=True)
class Goal:
    """Something that was set out to be reached.

    Attributes:
        what: is measured.
        found: of each job, pair of jobs or switch.
        most: that their median may be.
        unit: of the figures.
    """

    what: str
    found: Sequence[float]
    most: float
    unit: str = ""

    def line(self) -> str:
        """Its row of the table."""
        name = f"{self.what}, at most {self.most:g}{self.unit}"
        if not self.found:
            return f"| {name} | | | 0 | |"
        middle = median(self.found)
        reached = "reached" if middle <= self.most else "not reached"
        spread = f"{min(self.found):.3g}, {max(self.found):.3g}"
        return f"| {name} | {middle:.3g}{self.unit} | {spread} | {len(self.found)} | {reached} |"


def goals(records: Iterable[Record]) -> list[str]:
    """The table of goals."""
    found = Found(records)
    rows = [*_with_a_straggler(found), *_without(found), *_of_switches(found), *_on_cpu(found)]
    head = ["| goal | found, median | least, most | jobs | |", "|---|---|---|---|---|"]
    return [*head, *(goal.line() for goal in rows)]


def _with_a_straggler(found: Found) -> Iterator[Goal]:
    steps = found.pairs((PERSISTENT, "m-sync"), (HEALTHY, PLAIN))
    yield Goal(
        "m-sync, one rank 4 times slower: step / own step of a healthy job",
        [a["step_ms"] / own_ms(b) for a, b in steps],
        1.1,
    )
    trained = found.pairs((PERSISTENT, "m-sync"), (PERSISTENT, PLAIN))
    both = [(a["tta_s"], b["tta_s"]) for a, b in trained if None not in (a["tta_s"], b["tta_s"])]
    yield Goal("the same: time to accuracy / native DDP's", [a / b for a, b in both], 0.45)
    lost = [100.0 * (b["accuracy"] - a["accuracy"]) for a, b in trained]
    yield Goal("the same: accuracy at the end that is lost, mean", [mean(lost)] if lost else [], 0.2, " points")


def _without(found: Found) -> Iterator[Goal]:
    native = found.pairs((HEALTHY, NATIVE), (HEALTHY, PLAIN))
    yield Goal(
        "nobody slow: native steps, control / no control", [a["step_ms"] / b["step_ms"] for a, b in native], 1.01
    )
    rounds = found.pairs((HEALTHY, "ssgd"), (HEALTHY, PLAIN))
    yield Goal("rounds of everybody over native steps", [a["step_ms"] - b["step_ms"] for a, b in rounds], 0.4, " ms")


def _of_switches(found: Found) -> Iterator[Goal]:
    into = found.switches(HEALTHY, lambda s: s["before"] == NATIVE)
    yield Goal("native to rounds: longest step over usual one", [_longer_ms(s) for s in into], 5.0, " ms")
    back = found.switches(PERSISTENT, lambda s: s["after"] == NATIVE)
    yield Goal("rounds to native: longest step / slow rank's", [s["longest_ms"] / s["slowest_ms"] for s in back], 1.1)
    between = found.switches(HEALTHY, lambda s: NATIVE not in (s["before"], s["after"]))
    yield Goal("rounds to rounds: longest step / usual one", [s["longest_ms"] / s["before_ms"] for s in between], 2.0)


def _longer_ms(switch: Record) -> float:
    return float(switch["longest_ms"] - switch["before_ms"])


def _on_cpu(found: Found) -> Iterator[Goal]:
    for how, name in ((NATIVE, "native steps"), ("ssgd", "rounds")):
        pairs = found.pairs((BUSY, how), (BUSY, PLAIN))
        ratios = [a["step_ms"] / b["step_ms"] for a, b in pairs]
        yield Goal(f"compute on the CPU, {name}: control / no control", ratios, 1.03)
        yield Goal(f"the same: CPU time of our threads, {name}", [100 * a["thread_share"] for a, _ in pairs], 3.0, " %")


def methods(records: Iterable[Record]) -> list[str]:
    """Every way to synchronise, place by place."""
    found = Found(records)
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    places = dict.fromkeys(cell[:3] for cell in found.by_cell)
    for place in places:
        hows = dict.fromkeys(cell[3] for cell in found.by_cell if cell[:3] == place and cell[3] != SWITCHES)
        ordered = sorted(hows, key=lambda how: (how not in (PLAIN, NATIVE), how))
        lines += [_row(found, place, how) for how in ordered]
    return lines


def _row(found: Found, place: Place, how: str) -> str:
    mine = list(found.of(place, how).values())
    pairs = found.pairs((place, how), (place, PLAIN))
    times_s = [r["tta_s"] for r in mine if r["tta_s"] is not None]
    ratios = [a["tta_s"] / b["tta_s"] for a, b in pairs if a["tta_s"] is not None and b["tta_s"] is not None]
    late = f" ({len(mine) - len(times_s)} never)" if len(times_s) < len(mine) else ""
    used = [r["used"][-1] for r in mine if "used" in r]
    cells = [
        f"{place[0]}, {place[1]}, {place[2]}",
        how,
        f"{median(r['step_ms'] for r in mine):.1f}",
        f"{median(r['iteration_ms'] for r in mine):.1f}",
        (f"{median(times_s):.2f}" if times_s else "") + late,
        f"{median(ratios):.2f}" if ratios else "",
        f"{100 * mean(r['accuracy'] for r in mine):.1f}",
        f"{median(used):.2f}" if used else "",
        f"{mean(r['staleness'] for r in mine):.2f}, {max(r['staleness_max'] for r in mine)}" if used else "",
        "same" if all(r["identical"] for r in mine) else "differ",
        str(len(mine)),
    ]
    return f"| {' | '.join(cells)} |"
