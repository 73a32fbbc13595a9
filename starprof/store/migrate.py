"""Steps that bring an older run file to the current schema, one for each version.

Version 0 is the layout from before the first release: step records had neither the user's named spans nor the
hook's own time; version 1 had no imported runs; in version 2 every step had a start, and some files of it lack what was
added meanwhile; in version 3 nothing told of synchronisation modes, in version 4 not of the gradients' noise. In
version 5 updates were to tell whether they were finite, which no coordinator knows; ranks do, by their loss scale.
Version 6 knew no calibrations, version 7 no advisor.
Migrations run only when a file is opened for writing; a reader of an old file sees NULL in the columns that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator

from starprof.model.schema import SCHEMA_VERSION

MIGRATIONS: dict[int, tuple[str, ...]] = {
    0: (
        "ALTER TABLE step ADD COLUMN user_us BIGINT",
        "ALTER TABLE step ADD COLUMN hook_ns BIGINT",
    ),
    1: (
        "ALTER TABLE run ADD COLUMN source_format VARCHAR",
        "ALTER TABLE run ADD COLUMN timing VARCHAR",
        "CREATE TABLE operation (attempt BIGINT, rank BIGINT, step BIGINT, name VARCHAR, start_us DOUBLE, "
        "dur_us DOUBLE, micro_batch BIGINT, chunk BIGINT, sequence BIGINT)",
        "CREATE TABLE collective (attempt BIGINT, rank BIGINT, group_name VARCHAR, sequence BIGINT, name VARCHAR, "
        "step BIGINT, start_us DOUBLE, dur_us DOUBLE, min_dur_us DOUBLE, calls BIGINT, bytes BIGINT, state VARCHAR, "
        "ranks VARCHAR)",
        "CREATE TABLE link_test (first VARCHAR, second VARCHAR, bytes_per_s DOUBLE, kind VARCHAR)",
    ),
    2: (
        "ALTER TABLE collective ADD COLUMN IF NOT EXISTS std_dur_us DOUBLE",
        "CREATE TABLE IF NOT EXISTS loader_sample (node BIGINT, mono_ns BIGINT, rank BIGINT, ready_share DOUBLE, "
        "stage_time DOUBLE)",
        "ALTER TABLE process_sample ADD COLUMN IF NOT EXISTS fds BIGINT",
        "ALTER TABLE process_sample ADD COLUMN IF NOT EXISTS fds_limit BIGINT",
    ),
    3: (
        "CREATE TABLE IF NOT EXISTS sync_update (node BIGINT, mono_ns BIGINT, attempt BIGINT, version BIGINT, "
        "epoch BIGINT, retries BIGINT, mode VARCHAR, options VARCHAR, contributors VARCHAR, gradients BIGINT, "
        "per_contributor VARCHAR, numbers VARCHAR, weights VARCHAR, staleness VARCHAR, samples VARCHAR, "
        "weight_sum DOUBLE, staleness_max BIGINT, released VARCHAR, native BIGINT, finite BIGINT)",
        "CREATE TABLE IF NOT EXISTS sync_switch (node BIGINT, mono_ns BIGINT, attempt BIGINT, epoch BIGINT, "
        "version BIGINT, from_mode VARCHAR, from_options VARCHAR, to_mode VARCHAR, to_options VARCHAR, "
        "asked_by VARCHAR, reason VARCHAR, took_us BIGINT)",
        "CREATE TABLE IF NOT EXISTS sync_step (attempt BIGINT, rank BIGINT, step BIGINT, number BIGINT, "
        "version BIGINT, waited_us BIGINT, updates BIGINT, skipped BIGINT)",
    ),
    4: (
        "CREATE TABLE IF NOT EXISTS sync_noise (node BIGINT, mono_ns BIGINT, attempt BIGINT, version BIGINT, "
        "mode VARCHAR, gradients BIGINT, local DOUBLE, mean DOUBLE, share DOUBLE, scale DOUBLE, low DOUBLE, "
        "high DOUBLE)",
    ),
    5: (
        "ALTER TABLE sync_update DROP COLUMN IF EXISTS finite",
        "ALTER TABLE sync_step ADD COLUMN IF NOT EXISTS not_finite BIGINT",
    ),
    6: (
        "CREATE TABLE IF NOT EXISTS calibration (node BIGINT, mono_ns BIGINT, attempt BIGINT, rank BIGINT, "
        "kind VARCHAR, level DOUBLE, mode VARCHAR, options VARCHAR, took_us BIGINT, steps BIGINT, "
        "iteration_us BIGINT, own_us BIGINT, cores DOUBLE, bytes_per_s DOUBLE)",
    ),
    7: (
        "CREATE TABLE IF NOT EXISTS advisor_action (node BIGINT, mono_ns BIGINT, attempt BIGINT, action BIGINT, "
        "stage VARCHAR, mode VARCHAR, options VARCHAR, from_mode VARCHAR, ranks VARCHAR, hosts VARCHAR, "
        "reason VARCHAR, predicted_gain DOUBLE, predicted_low DOUBLE, predicted_high DOUBLE, dry_gain DOUBLE, "
        "measured_gain DOUBLE, measured_low DOUBLE, measured_high DOUBLE, accuracy_risk DOUBLE, "
        "max_staleness BIGINT, steps BIGINT)",
    ),
}
"""Schema version -> the DDL that leads to the next one."""


def statements(from_version: int) -> Iterator[str]:
    """DDL from a version to the current one; nothing when it is current."""
    for version in range(from_version, SCHEMA_VERSION):
        yield from MIGRATIONS[version]
