"""Which rank runs on which GPU, NUMA node, cores and interface, and what does not fit together."""

from __future__ import annotations

from starprof.analysis.binding_table import Place, binding_table, placing
from starprof.reports.markup import Section, table, text
from starprof.reports.material import Material

ROWS_AT_MOST = 64
OPEN_UP_TO = 16
HEADERS = ("ranks", "nodes", "GPU", "its NUMA", "cores", "their NUMA", "interface", "does not fit", "binds it")


def render(material: Material) -> Section | None:
    """The table with equal places of different nodes as one row; None when nothing is known."""
    places = binding_table(material.run)
    if not places:
        return None
    rows = [_row(place) for place in places[:ROWS_AT_MOST]]
    kept = [at for at in range(len(HEADERS)) if any(row[at] != "" for row in rows)]
    body = table(
        [HEADERS[at] for at in kept],
        [[row[at] for at in kept] for row in rows],
        numeric=[new for new, at in enumerate(kept) if at in (1, 3, 5)],
        marked=[at for at, place in enumerate(places[:ROWS_AT_MOST]) if place.faults],
    )
    left = len(places) - len(rows)
    more = f'<p class="note">{left} more rows are not shown.</p>' if left else ""
    opened = " open" if len(rows) <= OPEN_UP_TO or any(place.faults for place in places) else ""
    folded = f"<details{opened}><summary>Places ({len(places)})</summary>{body}{more}</details>"
    return Section("binding", "Where ranks run", f"<p>{text(placing(places))}</p>{_how(places)}{folded}")


def _how(places: tuple[Place, ...]) -> str:
    """How interfaces are known, each way once."""
    ways = list(dict.fromkeys(place.how for place in places if place.nic and place.how))
    return "".join(f'<p class="note">{text(f"Interface: {way}.")}</p>' for way in ways[:3])


def _row(place: Place) -> tuple[str, ...]:
    return (
        place.who,
        str(place.nodes),
        place.gpu,
        "" if place.gpu_numa is None else str(place.gpu_numa),
        place.cpus,
        ", ".join(map(str, place.cpu_numa)),
        " or ".join(place.nic),
        "; ".join(place.faults),
        place.command,
    )
