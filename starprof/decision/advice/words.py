"""The sentences of an advice."""

from __future__ import annotations

from collections.abc import Sequence

from starprof.decision.advice import commands
from starprof.decision.advice.evidence import Evidence
from starprof.decision.advice.ranking import Ranking
from starprof.decision.advice.result import LEAST_SAVING, Do, Saving, Step
from starprof.decision.choice.stragglers import straggles
from starprof.model.rundata import RunData
from starprof.model.tables.sync import NATIVE
from starprof.model.verdict import Verdict


def named(ranks: Sequence[int]) -> str:
    """Ranks for people: "ranks 1, 2"."""
    return (
        ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    )


def headline(do: Do, verdict: Verdict, steps: Sequence[Step]) -> str:
    """The advice in one sentence."""
    if do == "act":
        best = next(step for step in steps if step.kind != "record")
        whom = f" of {named(best.ranks)}" if best.ranks and best.kind != "mode" else ""
        saved = f"; it saves {_percent(best.saves)} of the time" if best.saves.share > 0 else ""
        cause = f" ({best.cause}{whom})" if best.cause else whom and f" ({whom.removeprefix(' of ')})"
        return f"{best.what[:1].upper()}{best.what[1:]}{cause}{saved}"
    if do == "record":
        return "Change nothing yet: the recording does not tell enough"
    if verdict.verdict == "none":
        return "Do nothing: no rank holds the others up"
    if over(verdict) and known_cost(verdict):
        return "Do nothing: what was slow is over"
    return "Do nothing: what is slow costs less than a change is worth"


def known_cost(verdict: Verdict) -> bool:
    """Whether what slowness costs was measured; tests of links and single calls tell no time of a job."""
    return verdict.verdict == "none" or verdict.cost.seconds > 0


def over(verdict: Verdict) -> bool:
    """Whether whoever was slow is not any more."""
    return bool(verdict.findings) and all(finding.end_step is not None for finding in verdict.findings)


def _percent(saves: Saving) -> str:
    if saves.low is None or saves.high is None:
        return f"{100 * saves.share:.0f} %"
    return f"{100 * saves.share:.0f} % ({100 * saves.low:.0f} to {100 * saves.high:.0f} %)"


def why(
    do: Do,
    verdict: Verdict,
    steps: Sequence[Step],
    known: Evidence | str,
    found: Ranking | None,
    refused: Sequence[str],
) -> str:
    """The reason, what came next, and why no mode is advised where none is."""
    told = []
    if do == "nothing" and over(verdict) and verdict.verdict != "none":
        last = max(finding.end_step or 0 for finding in verdict.findings)
        told.append(f"Slowness cost {100 * verdict.cost.share:.1f} % of the time, and ended with step {last}.")
    elif do == "nothing":
        told.append(f"Slowness costs {100 * verdict.cost.share:.1f} % of the time, below {100 * LEAST_SAVING:.0f} %.")
    elif do == "record" and verdict.reason:
        told.append(verdict.reason)
    if not known_cost(verdict) and verdict.verdict != "hang":
        told.append("What it costs the job is not known.")
    real = [step for step in steps if step.kind != "record"]
    if do == "act" and len(real) > 1:
        told.append(f"Next best: {real[1].what}, {_percent(real[1].saves)}. Savings of several steps don't add up.")
    if isinstance(known, str):
        told.append(f"Modes are not ranked: {known}.")
    elif found is None:
        told.append("Modes are not ranked: none of them sets a job going again that stands still.")
    elif refused and found.chosen.mode != NATIVE:
        told.append(f"{found.chosen.mode} would pay, but can't be had: {refused[0]}.")
    elif not any(step.kind == "mode" for step in steps):
        told.append(f"No other mode is advised: {found.choice.reason}.")
    return " ".join(told)


def cautions(run: RunData, known: Evidence | str, found: Ranking | None) -> list[str]:
    """What to know before believing the figures."""
    if found is None or isinstance(known, str):
        return []
    told = []
    if known.noise is None:
        told.append(
            "The gradient noise scale was not measured: gains hold for all from no noise to ten batches of all ranks. "
            "A job under control measures it."
        )
    told.append(
        "Modes that leave gradients out use a slow rank's data less: deal data out anew in each epoch "
        "(DistributedSampler.set_epoch)."
    )
    late = straggles(known.iteration_s).mean()
    told.append(f"By the 20 % rule {100 * late:.1f} % of the ranks' steps straggle.")
    if commands.imported(run):
        told.append("The run was imported: whether its loop allows rounds shows when it is recorded with --control.")
    if known.averaged > 1:
        told.append(f"Records are means of {known.averaged:,} steps: how much single steps differ is not seen.")
    return told
