"""Modes as users name them, for jobs that are there and for those that are not yet."""

import pytest

from starprof.control import modes
from starprof.errors import UsageError


@pytest.mark.parametrize(
    ("name", "options"),
    [("native", {}), ("m-sync", {"m": 3}), ("backup", {"b": 1}), ("dynamic-x", {"groups": [[0, 1, 2], [3]]})],
)
def test_a_mode_can_be_wanted_before_there_are_ranks(name, options):
    wanted = modes.before_start(name, options)
    assert (wanted.name, dict(wanted.options)) == (name, options)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("m-sync", {"m": 0}, "at least 1"),
        ("dynamic-x", {"groups": [[0, 1], [1]]}, "in one group"),
        ("dynamic-x", {"groups": "0-3"}, "can't be '0-3'"),
        ("dynamic-x", {"groups": [["0"]]}, "can't be"),
        ("m-sink", {}, "no synchronisation mode"),
    ],
)
def test_what_no_job_can_have_is_refused_before_it_starts(name, options, says):
    with pytest.raises(UsageError, match=says):
        modes.before_start(name, options)


def test_groups_are_held_against_the_ranks_once_they_are_known():
    groups = {"groups": [[0, 1], [2]]}
    assert modes.before_start("dynamic-x", groups).options == groups
    with pytest.raises(UsageError, match="in one group"):
        modes.mode("dynamic-x", groups, range(4))
