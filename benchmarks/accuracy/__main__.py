"""How often the diagnosis is right, and how often it blames the wrong one, on labelled inputs.

    python benchmarks/accuracy [--set public|reports|generated|replayed|recorded]... [--generated N]
           [--replayed N] [--max-ranks N] [--classes] [--live] [--json]

Sets: `public`, traces that others have published and whose answer is known; `reports`, faults that people have
reported, as small generated inputs; `generated`, random synthetic runs; `replayed`, random traces of pipeline-parallel
jobs, operation by operation; `recorded`, real jobs with an injected fault (minutes; only when asked for). `--live` also
feeds each generated run step by step to the detector for running jobs, and tells how many steps after the onset it
speaks. Beside the diagnosis stand simple rules that other tools use. Exit code 1 when a rank was wrongly blamed or an
answer that is sure is wrong in `public`, `reports` or `recorded`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import classes
import generated
import live
import numpy as np
import public
import recorded
import replayed
import reported
from label import Told, told
from rules import RULES, named_by
from truth import Case, Outcome, judge, refused

from starprof.analysis import diagnose
from starprof.errors import StarprofError

EXACT = ("public", "reports", "recorded")
"""Sets in which every answer must be right."""


@dataclass
class Tally:
    """Counts of one set.

    Attributes:
        told: generated runs with their labels.
        rules: per simple rule (runs, ranks rightly named, ranks to name, ranks named, runs with wrong blame).
    """

    outcomes: list[Outcome] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    watched: list[live.Watched] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    rules: dict[str, list[int]] = field(default_factory=lambda: {name: [0] * 5 for name in RULES})

    def add(self, case: Case, *, watch: bool = False) -> None:
        """Run one case; `watch`: by the live detector too."""
        try:
            run = case.load()
            verdict = diagnose(run)
        except FileNotFoundError:
            self.absent.append(case.name)
            return
        except StarprofError as error:
            self.outcomes.append(refused(case, str(error)))
            return
        self.outcomes.append(judge(case, verdict))
        if case.label is not None:
            self.told.append(told(case.label, case.truth, verdict, self.outcomes[-1]))
        seen = live.watch(run, case.truth) if watch else None
        if seen is not None:
            self.watched.append(seen)
        for name, rule in RULES.items():
            named = named_by(rule, run)
            if named is not None:
                wrong = named - case.truth.ranks - case.truth.tolerated
                found = (1, len(named & case.truth.ranks), len(case.truth.ranks), len(named), bool(wrong))
                self.rules[name] = [a + int(b) for a, b in zip(self.rules[name], found, strict=True)]

    def figures(self) -> dict[str, float | int | None]:
        """The set's figures; None where nothing was judged."""
        seen = self.outcomes
        hit, wrong = sum(len(o.hit) for o in seen), sum(len(o.wrong) for o in seen)
        causes = [o.cause_right for o in seen if o.cause_right is not None and o.hit]
        onsets = [o.onset_error for o in seen if o.onset_error is not None]
        return {
            "cases": len(seen),
            "right": _share(sum(not o.faults for o in seen), len(seen)),
            "precision": _share(hit, hit + wrong),
            "recall": _share(hit, hit + sum(len(o.missed) for o in seen)),
            "wrong_blame": _share(sum(bool(o.wrong) for o in seen), len(seen)),
            "cause": self._causes(causes, "cause"),
            "wrong_cause": self._causes([not right for right in causes], "wrong_cause"),
            "onset_error_steps": _median(onsets),
            "abstained": _share(sum(o.abstained for o in seen), len(seen)),
            "steps_to_tell": _median([w.told for w in self.watched]),
            "steps_to_confirm": _median([w.confirmed for w in self.watched]),
            "live_wrong_blame": _share(sum(bool(w.wrong) for w in self.watched), len(self.watched)),
        }

    def _causes(self, judged: list[bool], name: str) -> float | int | None:
        """Share of the found faults; of labelled runs of the findings, where a true place is not yet the cause."""
        return classes.figures(self.told)[name] if self.told else _share(sum(judged), len(judged))

    def rule_figures(self) -> dict[str, dict[str, float | int | None]]:
        """The same for the simple rules."""
        return {
            name: {
                "cases": runs,
                "precision": _share(hit, named),
                "recall": _share(hit, truth),
                "wrong_blame": _share(wrong, runs),
            }
            for name, (runs, hit, truth, named, wrong) in self.rules.items()
            if runs
        }


def _median(values: Iterable[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.median(known)) if known else None


def in_all(tallies: Iterable[Tally]) -> Tally:
    """All sets as one."""
    total = Tally()
    for tally in tallies:
        total.outcomes += tally.outcomes
        total.watched += tally.watched
        for name, counts in tally.rules.items():
            total.rules[name] = [a + b for a, b in zip(total.rules[name], counts, strict=True)]
    return total


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _cases(name: str, options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    if name == "public":
        yield from public.cases()
    elif name == "reports":
        yield from reported.cases()
    elif name == "recorded":
        yield from recorded.cases(folder)
    elif name == "replayed":
        yield from replayed.cases(options.replayed, options.first_seed)
    else:
        yield from generated.cases(options.runs, (options.min_ranks, options.max_ranks), options.first_seed)


def run_set(name: str, cases: Iterable[Case], *, verbose: bool, watch: bool) -> Tally:
    """Run all cases of one set; faults are shown as they come."""
    tally = Tally()
    for case in cases:
        before = len(tally.outcomes)
        tally.add(case, watch=watch)
        for outcome in tally.outcomes[before:]:
            if outcome.faults or verbose:
                print(f"{name}: {case.name}: {'; '.join(outcome.faults) or outcome.verdict}", file=sys.stderr)
    for missing in tally.absent:
        print(f"{name}: {missing}: not here, left out", file=sys.stderr)
    return tally


def _table(tallies: dict[str, Tally]) -> None:
    columns: tuple[str, ...] = ("cases", "right", "precision", "recall", "wrong_blame", "cause", "wrong_cause")
    columns += ("onset_error_steps", "abstained")
    if any(tally.watched for tally in tallies.values()):
        columns += ("steps_to_tell", "steps_to_confirm", "live_wrong_blame")
    print(f"{'':34}" + "".join(f"{c.replace('_', ' '):>18}" for c in columns))
    shown = {**tallies, "in all": in_all(tallies.values())} if len(tallies) > 1 else tallies
    for name, tally in shown.items():
        # Of labelled runs causes are counted more strictly: the two are not added up.
        apart = {} if name in tallies else {"cause": None, "wrong_cause": None}
        _row(name, {**tally.figures(), **apart}, columns)
        for rule, figures in tally.rule_figures().items():
            _row(f"  rule: {rule}", figures, columns)


def _class_tables(seen: list[Told]) -> None:
    """Figures per class, course of time and size."""
    tables = {
        "per class of fault": classes.by_class(seen),
        "single faults per course of time": classes.by_shape(seen),
        "single faults of ranks where CV <= 5 % and spread <= 1 %": classes.by_size(seen),
    }
    for title, rows in tables.items():
        print(f"\n{title:60}" + "".join(f"{c.replace('_', ' '):>18}" for c in classes.COLUMNS))
        for name, figures in rows.items():
            _row(f"  {name}", figures, classes.COLUMNS, 60)


def _row(name: str, figures: dict[str, float | int | None], columns: tuple[str, ...], width: int = 34) -> None:
    cells = []
    for column in columns:
        value = figures.get(column)
        text = (
            ""
            if value is None
            else f"{value:.1%}"
            if isinstance(value, float) and "steps" not in column
            else f"{value:g}"
        )
        cells.append(f"{text:>18}")
    print(f"{name:{width}}" + "".join(cells))


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", choices=["public", "reports", "generated", "replayed", "recorded"])
    parser.add_argument("--generated", "--runs", dest="runs", type=int, default=300, help="generated runs")
    parser.add_argument("--replayed", type=int, default=200, help="generated op traces")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--min-ranks", type=int, default=8)
    parser.add_argument("--max-ranks", type=int, default=256)
    parser.add_argument("--live", action="store_true", help="also watch each run step by step")
    parser.add_argument("--classes", action="store_true", help="also figures per class of generated fault")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="also show the right answers")
    options = parser.parse_args()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        tallies = {
            name: run_set(name, _cases(name, options, Path(folder)), verbose=options.verbose, watch=options.live)
            for name in options.set or ("public", "reports", "generated", "replayed")
        }
    if options.json:
        answer = {
            name: {
                "figures": t.figures(),
                "classes": classes.by_class(t.told),
                "rules": t.rule_figures(),
                "outcomes": [asdict(o) for o in t.outcomes],
            }
            for name, t in tallies.items()
        }
        print(json.dumps(answer, default=sorted, indent=1))
    else:
        _table(tallies)
        if options.classes:
            _class_tables([one for tally in tallies.values() for one in tally.told])
        print(f"CPU time {time.process_time() - began:.0f} s")
    exact = [o for name, t in tallies.items() if name in EXACT for o in t.outcomes]
    return 1 if any(o.faults for o in exact) or any(o.wrong for t in tallies.values() for o in t.outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
