import pytest
from device_lab import SECOND_NS, Recorded, write_tree

from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.irq import IrqCollector, interrupt_sums

T0 = 100 * SECOND_NS
SOFTIRQS = """                    CPU0       CPU2       CPU3
          HI:          1          2          3
      NET_TX:         10         20         30
      NET_RX:        100        200        300
       TIMER:          7          8          9
"""
INTERRUPTS = """           CPU0       CPU2       CPU3
  0:         10          0          1   IO-APIC   2-edge      timer
 24:          5          6          7   PCI-MSI 1234-edge      eth0-rx-0, eth0-tx-0
NMI:          1          1          1   Non-maskable interrupts
ERR:          9
MIS:          0
"""
STAT = "cpu  1 2 3 4\ncpu0 1 2 3 4\nintr 4321 10 0 5 6\nctxt 99\n"


@pytest.fixture
def context(tmp_path):
    write_tree(tmp_path, {"softirqs": SOFTIRQS, "interrupts": INTERRUPTS, "stat": STAT})
    return NodeContext(proc=tmp_path)


def sampled(context):
    collector, rows = IrqCollector(), Recorded()
    collector.open(context, rows)
    collector.sample(T0, rows)
    collector.close()
    return {r["cpu"]: r for r in rows["irq_sample"]}


def test_network_soft_interrupts_are_counted_per_cpu_by_its_own_number(context):
    rows = sampled(context)
    assert {cpu: r["softirq_net_rx"] for cpu, r in rows.items()} == {-1: 600, 0: 100, 2: 200, 3: 300}
    assert {cpu: r["softirq_net_tx"] for cpu, r in rows.items()} == {-1: 60, 0: 10, 2: 20, 3: 30}


def test_hardware_interrupts_are_summed_per_cpu_and_the_whole_comes_from_proc_stat(context):
    assert {cpu: r["interrupts"] for cpu, r in sampled(context).items()} == {-1: 4321, 0: 16, 2: 7, 3: 9}


def test_without_proc_interrupts_the_rest_is_still_there(context):
    (context.proc / "interrupts").unlink()
    rows = sampled(context)
    assert rows[0]["interrupts"] is None
    assert rows[-1]["interrupts"] == 4321


def test_lines_without_a_number_per_cpu_are_no_interrupts():
    assert interrupt_sums(INTERRUPTS.encode()) == {0: 16, 2: 7, 3: 9}


def test_a_soft_interrupt_that_the_kernel_does_not_list_is_null(context):
    write_tree(context.proc, {"softirqs": SOFTIRQS.replace("NET_TX", "OTHER")})
    assert sampled(context)[0]["softirq_net_tx"] is None


def test_without_softirqs_it_is_unavailable(tmp_path):
    with pytest.raises(Unavailable, match="softirqs"):
        IrqCollector().open(NodeContext(proc=tmp_path), Recorded())


def test_this_machine_counts_forward():
    first, second = sampled(NodeContext()), sampled(NodeContext())
    assert second[-1]["interrupts"] >= first[-1]["interrupts"] > 0
    assert sum(r["softirq_net_rx"] for cpu, r in second.items() if cpu >= 0) == second[-1]["softirq_net_rx"]
