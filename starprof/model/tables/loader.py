"""Tables of what data loaders report about themselves; only imported runs have them."""

from starprof.model.columns import AT, NODE_KEY, RANK_KEY, Table, real

LOADER_SAMPLE = Table(
    30,
    "loader_sample",
    "State of each rank's data loading, as loaders that watch themselves report it.",
    (
        NODE_KEY,
        AT,
        RANK_KEY,
        real("ready_share", "share of the fetches that found a batch ready; 1 = training never waits for data"),
        real("stage_time", "mean time of one stage of the loader, in the source's unit, NULL when readiness is told"),
    ),
    packed=True,
    sampled=True,
)
