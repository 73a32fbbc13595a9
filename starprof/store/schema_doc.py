"""Renders docs/schema.md from the record model.

python -m starprof.store.schema_doc > docs/schema.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from starprof.model.schema import SCHEMA_VERSION, STEP_SPANS, TABLES, Table

INTRODUCTION = """\
# The run file

*Written by `python -m starprof.store.schema_doc`; do not edit.*

A run is one file, `NAME.starprof`. It is a DuckDB database (storage version 1.2), so that `starprof sql`, the DuckDB
command line and any DuckDB client from version 1.2 on can open it. This is record schema {version}.

- **NULL means "not measured"**, never zero.
- Units stand in the names: `_us` integer microseconds, `_ns` integer nanoseconds, `_bytes`, `_hz`, `_c` (degrees
  Celsius), `_w` (watts), `_share` (0 to 1), `_pct` (0 to 100). A bare name is a count or an id.
- `mono_ns` and `*_mono_ns` are CLOCK_MONOTONIC of the node that took the record. To compare times of two nodes add
  `clock.offset_ns` of each, and mind `clock.error_ns`; a node without a row in `clock` can't be compared.
  `*_unix_ns` is wall-clock time, which may jump: for display only.
- Kinds: **key** says what a row is about, **time** when it was taken, **counter** is cumulative (only differences mean
  something; a negative difference is a reset or a wrap, not a rate), **gauge** is a value at that moment, **fact** a
  property.
- Join steps on `attempt`, `rank` and `step`, never on row order or clocks.
- The spans of a step are exclusive and add up: `dur_us` = {spans}.

## Asking

`starprof sql RUN "SELECT …"` prints a table, `--csv` and `--json` for programs. It can only read, and only this file.
"""

EXAMPLES: tuple[tuple[str, str], ...] = (
    (
        "Who arrived last, and how often: the rank for which the others wait",
        """\
SELECT rank, count(*) AS steps_last
FROM (SELECT step, arg_max(rank, arrival_us) AS rank FROM step WHERE attempt = 0 GROUP BY step)
GROUP BY rank ORDER BY steps_last DESC""",
    ),
    (
        "Where the time of each rank went",
        """\
SELECT rank, count(*) AS steps, median(dur_us) AS dur_us, median(data_wait_us) AS data_wait_us,
    median(forward_us) AS forward_us, median(backward_us) AS backward_us, median(blocked_us) AS blocked_us
FROM step WHERE attempt = 0 GROUP BY rank ORDER BY rank""",
    ),
    (
        "CPU use of every node in cores, second by second: a rate from a counter",
        """\
SELECT node, mono_ns // 1000000000 AS second, sum(used_us) / sum(gone_ns / 1000.0) AS cores
FROM (
    SELECT node, mono_ns, user_us + system_us - lag(user_us + system_us) OVER w AS used_us,
        mono_ns - lag(mono_ns) OVER w AS gone_ns
    FROM cpu_sample WHERE cpu = -1 WINDOW w AS (PARTITION BY node ORDER BY mono_ns))
WHERE used_us >= 0 GROUP BY ALL ORDER BY ALL""",
    ),
    (
        "What the samples of rank 0's process say about waiting for a CPU",
        """\
SELECT pid, max(run_delay_us) - min(run_delay_us) AS waited_us, max(on_cpu_us) - min(on_cpu_us) AS ran_us
FROM process_sample WHERE rank = 0 AND is_rank = 1 GROUP BY pid""",
    ),
    (
        "Under each synchronisation mode, whose gradients went into how many of the updates",
        """\
SELECT mode, rank, count(*) AS updates, round(count(*) / any_value(closed), 3) AS share
FROM (
    SELECT mode, count(*) OVER (PARTITION BY mode) AS closed, unnest(flatten(list_transform(
        string_split(contributors, ','),
        lambda part: range(split_part(part, '-', 1)::BIGINT, split_part(part, '-', -1)::BIGINT + 1)))) AS rank
    FROM (
        SELECT * FROM sync_update WHERE attempt = 0
        QUALIFY row_number() OVER (PARTITION BY version ORDER BY epoch DESC, retries DESC, mono_ns DESC) = 1))
GROUP BY ALL ORDER BY ALL""",
    ),
    (
        "What is missing, and why",
        """\
SELECT source, lost_rows, reason FROM gap
UNION ALL SELECT source, NULL, reason FROM unavailable""",
    ),
)
"""What it answers, and the query; a test runs them all."""

ROLLED_UP = """\
## Rolled-up samples

`starprof record --max-size` turns old samples into means: first of 1 s, later of 60 s. Step records, events and the
samples around slow steps and rare events stay as they are. What a table is rolled up to is in `<table>_rollup`:

| column | type | meaning |
|---|---|---|
| `width_s` | BIGINT | length of the bucket: 1 or 60 |
| the table's keys | BIGINT | as in the table |
| `mono_ns` | BIGINT | begin of the bucket |
| `samples` | BIGINT | samples in it |
| `covered_us` | BIGINT | time between these samples and the ones before them: the weight of a counter's mean |
| the table's facts | BIGINT | largest value |
| `<column>_min`, `<column>_mean`, `<column>_max` | FLOAT | a gauge: of its values. A counter: of its rate per second |

## Bookkeeping

| table | columns | meaning |
|---|---|---|
| `meta` | `key`, `value` | facts about the file: `format`, `schema_version`, how far samples are rolled up |
| `ledger` | `stream`, `next_seq`, `last_mono_ns` | how far each stream of records is folded in |
"""


def render() -> str:
    """The whole document."""
    spans = " + ".join(f"`{name}`" for name in STEP_SPANS)
    parts = [INTRODUCTION.format(version=SCHEMA_VERSION, spans=spans)]
    parts += [f"{title}:\n\n```sql\n{query}\n```\n" for title, query in EXAMPLES]
    parts.append("## Tables\n")
    parts += ["\n".join(_table(table)) + "\n" for table in TABLES]
    parts.append(ROLLED_UP)
    return "\n".join(parts)


def _table(table: Table) -> Iterator[str]:
    yield f"### `{table.name}`"
    yield ""
    yield " ".join(table.doc.split()) + (" Rolled up by `--max-size`." if table.sampled else "")
    yield ""
    yield "| column | type | kind | meaning |"
    yield "|---|---|---|---|"
    for column in table.columns:
        doc = " ".join(column.doc.split()).replace("|", "\\|")
        yield f"| `{column.name}` | {column.type.value} | {column.kind.value} | {doc} |"


if __name__ == "__main__":
    sys.stdout.write(render())
