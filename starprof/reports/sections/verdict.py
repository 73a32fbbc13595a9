"""The top of the page: the answer in one sentence, with its size, its cost and how sure it is."""

from __future__ import annotations

from starprof.model.verdict import Finding
from starprof.reports import told, words
from starprof.reports.markup import Section, text
from starprof.reports.material import Material


def render(material: Material) -> Section:
    """Kicker, headline, what it costs, and up to four figures."""
    verdict, total = material.verdict, material.total_seconds
    may = told.told(material.run)
    said = words.headline(verdict, material.finding, total, waits=may.waits, course=may.course, links=may.links)
    title = words.sentence(said.who)
    reason = "" if verdict.verdict == "straggler" else verdict.reason  # there the headline has said it all
    lines = [line for line in (_why(material.finding, said.why), words.sentence(reason)) if line]
    told_once = "".join(f'<p class="lead">{text(line)}</p>' for line in dict.fromkeys(lines))
    tiles = "".join(
        f'<div class="tile"><span class="figure">{text(figure)}</span><span class="label">{text(label)}</span></div>'
        for figure, label in _tiles(material)
    )
    return Section(
        "verdict",
        "",
        f'<p class="kicker kind-{verdict.verdict}">{text(words.VERDICT_TITLES[verdict.verdict])}</p>'
        f"<h1>{text(title)}</h1>{told_once}"
        f'<div class="tiles">{tiles}</div>',
    )


def _why(finding: Finding | None, why: str) -> str:
    """The cause as a sentence with its name in the vocabulary; without a finding, what the verdict says."""
    if finding is None or not why.startswith(finding.cause):
        return words.sentence(why)
    title = words.CAUSE_TITLES.get(finding.cause, finding.cause)
    return f"{words.sentence(title)} ({finding.cause}) {words.since(finding)}".rstrip() + "."


def _tiles(material: Material) -> list[tuple[str, str]]:
    verdict, finding = material.verdict, material.finding
    waits = told.told(material.run).waits
    tiles = []
    if finding is not None and finding.slowdown > 1 and verdict.verdict != "none":
        tiles.append((words.times(finding.slowdown), "slower steps" if waits else "as long as the others' steps"))
    if verdict.cost.seconds > 0 and waits:
        total = material.total_seconds
        of = f"of {words.seconds(total)} lost" if total == total else "lost"
        tiles.append((words.seconds(verdict.cost.seconds), of))
    if verdict.cost.share > 0:
        of = "of the job's time" if waits else "of what all workers could do lost"
        tiles.append((words.percent(verdict.cost.share), of))
    if verdict.cost.gpu_hours > 0 and any(rank.gpu_uuid for rank in material.run.ranks):
        tiles.append((f"{verdict.cost.gpu_hours:.2g} h", "of GPU time lost"))
    if verdict.cost.money:
        tiles.append((words.money(verdict.cost).split(" (")[0], "lost, at the given price of a GPU hour"))
    if finding is not None and verdict.verdict != "none":
        tiles.append((words.percent(finding.confidence), f"confidence: {words.certainty(finding.confidence)}"))
    if not tiles and material.total_seconds == material.total_seconds:
        tiles.append((str(verdict.ranks), "ranks looked at"))
        tiles.append((f"{len(material.run.steps.steps):,}", "steps looked at"))
        tiles.append((words.seconds(material.total_seconds), "of training"))
    return tiles
