"""Adding a collector is one module and one line."""

import pytest

from starprof.collectors.base import Unavailable
from starprof.collectors.registry import COLLECTORS, Entry


@pytest.mark.parametrize("entry", COLLECTORS, ids=lambda entry: entry.name)
def test_each_registered_collector_can_be_made_and_has_its_registered_name(entry):
    collector = entry.create()

    assert collector.name == entry.name
    assert isinstance(collector.dear, bool)


def test_a_collector_whose_module_is_missing_is_unavailable():
    with pytest.raises(Unavailable, match="can't be imported"):
        Entry("nothing", "starprof.collectors.nothing:NothingCollector").create()
