"""Metrics of made-up GPUs and hosts, written as the tools write them."""

import pytest

from starprof.importers.source import Source

SMI_HEADER = (
    "timestamp, name, index, uuid, utilization.gpu [%], power.draw [W], power.limit [W], clocks.current.sm [MHz], "
    "clocks_event_reasons.active, temperature.gpu, pcie.link.gen.current"
)


def clock(second):
    return f"2026/01/31 {10 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.250"


def smi_row(second, gpu, *, util=99, power=300.0, limit=300.0, sm=1410, reasons=0, heat=65, gen=3, name="Tesla V100"):
    return (
        f"{clock(second)}, {name}, {gpu}, GPU-{gpu:08d}-aaaa, {util} %, {power:.2f} W, {limit:.2f} W, {sm} MHz, "
        f"0x{reasons:016x}, {heat}, {gen}"
    )


def smi_csv(rows):
    return "\n".join([SMI_HEADER, *rows]) + "\n"


@pytest.fixture
def source(tmp_path):
    """Write a text to a file of a name, and give it as a source."""

    def write(text, name="metrics.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return Source(str(path), path)

    return write
