"""The collectors that exist: adding one is a module and one line here.

Factories are import paths, so that a collector's imports are paid for only by the agent that starts it, and one
that is missing or broken costs its own source, not the agent.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from starprof.collectors.base import Collector, Unavailable


@dataclass(frozen=True, slots=True)
class Entry:
    """One collector.

    Attributes:
        name: the collector's name, as in tables `gap` and `unavailable`.
        factory: `module:class`; called without arguments.
    """

    name: str
    factory: str

    def create(self) -> Collector:
        """Import the module and make the collector.

        Raises:
            Unavailable: the module or what it imports is not installed.
        """
        module_name, _, attribute = self.factory.partition(":")
        try:
            collector: Collector = getattr(importlib.import_module(module_name), attribute)()
        except ImportError as error:
            raise Unavailable(f"can't be imported: {error}") from error
        return collector


COLLECTORS: tuple[Entry, ...] = (
    Entry("process", "starprof.collectors.process:ProcessCollector"),
    Entry("cpu", "starprof.collectors.cpu:CpuCollector"),
    Entry("node", "starprof.collectors.node:NodeCollector"),
    Entry("cgroup", "starprof.collectors.cgroup:CgroupCollector"),
    Entry("nic", "starprof.collectors.nic:NicCollector"),
    Entry("infiniband", "starprof.collectors.infiniband:InfinibandCollector"),
    Entry("tcp", "starprof.collectors.tcp:TcpCollector"),
    Entry("irq", "starprof.collectors.irq:IrqCollector"),
    Entry("numa", "starprof.collectors.numa:NumaCollector"),
    Entry("disk", "starprof.collectors.disk:DiskCollector"),
    Entry("gpu", "starprof.collectors.gpu:GpuCollector"),
)
