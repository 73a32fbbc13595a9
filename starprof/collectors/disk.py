"""Block devices and NFS mounts: bytes, operations, and how long they waited.

Columns of `disk_sample`, cumulative, 1 Hz:
                     block device: /proc/diskstats          NFS mount: /proc/self/mountstats
  read_bytes         sectors read times 512                 bytes: read from the server
  write_bytes        sectors written times 512              bytes: written to the server
  reads, writes      completed                              READ, WRITE: operations
  read_wait_us       ms spent reading times 1000            READ: ms from queueing to answer times 1000
  write_wait_us      ms spent writing times 1000            WRITE: likewise
  busy_us            ms with I/O in flight times 1000       NULL
  nfs_retransmits    NULL                                   all operations: transmissions minus operations

A sector of /proc/diskstats has 512 bytes whatever the device's block size. Only the lowest whole devices are
taken: partitions, and devices stacked on others (LVM, RAID), would count the same bytes again; loop, RAM and
compressed-RAM devices are no storage. Mounts are those the agent sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.notes import Notes, stable_id
from starprof.collectors.procfile import ProcFile, optional
from starprof.model.tables.host import DISK, DISK_SAMPLE

_SECTOR_BYTES = 512
_US_PER_MS = 1000
_NO_STORAGE = ("loop", "ram", "zram", "sr", "fd")
_NAME_AT, _READS_AT, _BUSY_AT = 2, 3, 12
_FIELDS = 13


class DiskCollector:
    """Collects `disk_sample` and `disk`."""

    name = "disk"
    dear = True

    def open(self, context: NodeContext, rows: Rows) -> None:
        """Open /proc/diskstats and the mounts, and name what they show."""
        self._node = context.node
        self._block = context.sys / "block"
        self._notes = Notes(self.name, context.node)
        self._diskstats = optional(context.proc / "diskstats")
        self._mountstats = optional(context.proc / "self" / "mountstats")
        if self._diskstats is None and self._mountstats is None:
            raise Unavailable(f"neither diskstats nor self/mountstats can be read below {context.proc}")
        self._ids: dict[str, int | None] = {}
        if self._diskstats is None:
            self._notes.unavailable(rows, "block", f"{context.proc}/diskstats can't be read")

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """Append one row per device and per NFS mount."""
        for name, values in block_counters(_read(self._diskstats)):
            disk = self._id(name, "block", rows)
            if disk is not None:
                rows.add(DISK_SAMPLE, [self._node, mono_ns, disk, *values, None])
        for mount, counts in nfs_counters(_read(self._mountstats)):
            disk = self._id(mount, "nfs", rows)
            rows.add(DISK_SAMPLE, [self._node, mono_ns, disk, *counts[:-1], None, counts[-1]])

    def close(self) -> None:
        """Close all descriptors."""
        for file in (self._diskstats, self._mountstats):
            if file is not None:
                file.close()

    def _id(self, name: str, kind: str, rows: Rows) -> int | None:
        """Id of a device, which is named when first seen; None for one that would count bytes twice."""
        if name not in self._ids:
            wanted = kind == "nfs" or is_lowest_whole_device(self._block, name)
            self._ids[name] = stable_id("disk", name) if wanted else None
            if wanted:
                rows.add(DISK, [self._node, self._ids[name], name, kind])
        return self._ids[name]


def is_lowest_whole_device(block: Path, name: str) -> bool:
    """Whether /sys/block has it (partitions are not there) and it lies on no other device.

    Args:
        block: /sys/block.
        name: as in /proc/diskstats; a slash in it is a `!` in /sys.
    """
    if name.rstrip("0123456789") in _NO_STORAGE:
        return False
    folder = block / name.replace("/", "!")
    if not block.is_dir():  # a sandbox without /sys: what there is is better than nothing
        return True
    slaves = folder / "slaves"
    return folder.exists() and not (slaves.is_dir() and any(slaves.iterdir()))


def block_counters(diskstats: bytes) -> Iterator[tuple[str, list[int]]]:
    """Name and read_bytes ... busy_us of each device in /proc/diskstats."""
    for line in diskstats.splitlines():
        f = line.split()
        if len(f) < _FIELDS:
            continue
        reads, _, read_sectors, read_ms, writes, _, write_sectors, write_ms = (
            int(v) for v in f[_READS_AT : _READS_AT + 8]
        )
        yield (
            f[_NAME_AT].decode(errors="replace"),
            [
                read_sectors * _SECTOR_BYTES,
                write_sectors * _SECTOR_BYTES,
                reads,
                writes,
                read_ms * _US_PER_MS,
                write_ms * _US_PER_MS,
                int(f[_BUSY_AT]) * _US_PER_MS,
            ],
        )


def nfs_counters(mountstats: bytes) -> Iterator[tuple[str, list[int | None]]]:
    """Mount point and the columns read_bytes ... write_wait_us, nfs_retransmits of each NFS mount."""
    for section in mountstats.split(b"\ndevice "):
        lines = section.splitlines()
        words = lines[0].removeprefix(b"device ").split() if lines else []
        kind = next((words[i + 1] for i, word in enumerate(words[:-1]) if word == b"fstype"), b"")
        if kind in (b"nfs", b"nfs4") and b"on" in words:
            yield _mount_name(words), _nfs_values(lines)


def _mount_name(words: list[bytes]) -> str:
    """Mount point; the kernel writes a blank in it as an octal escape."""
    raw = words[words.index(b"on") + 1].decode(errors="replace")
    return raw.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _nfs_values(lines: list[bytes]) -> list[int | None]:
    byte_counts: list[int] = []
    operations: dict[bytes, list[int]] = {}
    per_operation = False
    for line in lines:
        name, colon, rest = line.strip().partition(b":")
        if name == b"bytes":
            byte_counts = [int(v) for v in rest.split()]
        elif name.startswith(b"per-op"):
            per_operation = True
        elif per_operation and colon:
            operations[name] = [int(v) for v in rest.split()]
    read, write = operations.get(b"READ"), operations.get(b"WRITE")
    # bytes: normal read, normal written, direct read, direct written, from the server, to the server, ...
    from_server, to_server = byte_counts[4:6] if len(byte_counts) >= 6 else (None, None)
    return [
        from_server,
        to_server,
        read[0] if read else None,
        write[0] if write else None,
        read[7] * _US_PER_MS if read else None,
        write[7] * _US_PER_MS if write else None,
        sum(v[1] - v[0] for v in operations.values()) if operations else None,
    ]


def _read(file: ProcFile | None) -> bytes:
    try:
        return file.read_all() if file is not None else b""
    except OSError:
        return b""
