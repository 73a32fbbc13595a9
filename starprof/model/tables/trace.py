"""Tables that only imported runs have: what other tools' traces tell beyond step records."""

from starprof.model.columns import ATTEMPT_KEY, RANK_KEY, Column, Kind, Table, Type, fact, integer, key, real, text

START = Column("start_us", Type.FLOAT, Kind.TIME, "start in the source's clock, microseconds; NULL when not told")

OPERATION = Table(
    27,
    "operation",
    "Operations of a step, as op traces of pipeline-parallel training hold them: what the what-if replay is made of.",
    (
        ATTEMPT_KEY,
        RANK_KEY,
        key("step", "step"),
        text("name", "operation, such as forward-compute, backward-compute, forward-send, grads-reduce-scatter"),
        START,
        real("dur_us", "duration"),
        fact("micro_batch", "micro-batch, NULL when the operation belongs to none"),
        fact("chunk", "model chunk of an interleaved schedule, NULL when there is one only"),
        fact("sequence", "number that joins the operations of one collective or one send and receive, NULL if none"),
    ),
)

COLLECTIVE = Table(
    28,
    "collective",
    "Collective operations, one row per rank and call (or per rank and kind of call, with `calls` above 1).",
    (
        ATTEMPT_KEY,
        RANK_KEY,
        text("group_name", "process group"),
        integer("sequence", Kind.KEY, "number of the call within its group: rows of one call share it; NULL unknown"),
        text("name", "kind of call, such as all_reduce"),
        fact("step", "step it belongs to, NULL when not told"),
        START,
        real("dur_us", "mean time from this rank's start to its end, waiting included; NULL when it never ended"),
        real("min_dur_us", "shortest of the calls, NULL for a single one"),
        fact("calls", "calls that the row stands for, NULL when not told"),
        fact("bytes", "payload"),
        text("state", "scheduled, started or completed; NULL when not told"),
        text("ranks", "members of the group as a list such as 0-7, NULL when not told"),
        real("std_dur_us", "standard deviation of the calls, NULL for a single one or when not told"),
    ),
)

LINK_TEST = Table(
    29,
    "link_test",
    "Bandwidth tests between pairs of places.",
    (
        text("first", "host or GPU"),
        text("second", "the other one"),
        real("bytes_per_s", "bandwidth that was reached"),
        text("kind", "test, such as all_reduce"),
    ),
)
