"""The sections of the HTML report, one module each with `render(material) -> Section | None`.

A new section is a new module and one line in `SECTIONS`. None means that the run holds nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable

from starprof.reports.markup import Section
from starprof.reports.material import Material
from starprof.reports.sections import (
    advice,
    advisor,
    anatomy,
    binding,
    counters,
    findings,
    heatmap,
    metadata,
    missing,
    overhead,
    synchronisation,
    verdict,
    whatif,
)

SECTIONS: tuple[Callable[[Material], Section | None], ...] = (
    verdict.render,
    findings.render,
    advice.render,
    whatif.render,
    heatmap.render,
    synchronisation.render,
    advisor.render,
    anatomy.render,
    counters.render,
    binding.render,
    metadata.render,
    overhead.render,
    missing.render,
)
"""In the order of the page."""
