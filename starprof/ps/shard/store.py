"""What a shard has on disk: a snapshot of its state, and a log of what was done since. Together they are its state.

    snapshot-N    everything before entry N: heads as JSON, then the bytes of each tensor
    log-N         a line for every entry from N on, written before the entry is acknowledged
    arena         gradients, and the sums of those that the log's updates were made with (`arena.Arena`)

A line counts as soon as it is written: it outlives the process. With `to_disk` it is synced first, so that it also
outlives the machine.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from starprof.errors import SpoolError

_HEAD = struct.Struct("<QI")
_KEEP_NAME = "snapshot-"


class Store:
    """The files of one shard, in a folder of its own."""

    def __init__(self, folder: Path, *, to_disk: bool = False) -> None:
        """Look into the folder, which is made if it isn't there."""
        self.folder = folder
        self.to_disk = to_disk
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log: int | None = None

    # Snapshots.

    def snapshot(self, serial: int, told: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        """Write everything before entry `serial`, and begin a new log."""
        entry = {**told, "serial": serial, "tensors": [[_name(one), list(one.shape)] for one in tensors]}
        head = json.dumps(entry).encode()
        path = self.folder / f"{_KEEP_NAME}{serial}"
        part = path.with_suffix(".part")
        try:
            with part.open("wb") as stream:
                stream.write(_HEAD.pack(len(head), zlib.crc32(head)) + head)
                for one in tensors:
                    stream.write(_bytes(one.detach().contiguous()))
                stream.flush()
                if self.to_disk:
                    os.fsync(stream.fileno())
            self._begin_log(serial)
            part.rename(path)
        except OSError as error:
            raise SpoolError(f"{path} can't be written: {error}") from error
        self._forget_before(serial)

    def newest(self) -> tuple[dict[str, Any], list[torch.Tensor]] | None:
        """The newest snapshot; None: there is none."""
        numbers = self._numbers(_KEEP_NAME)
        if not numbers:
            return None
        path = self.folder / f"{_KEEP_NAME}{numbers[-1]}"
        try:
            with path.open("rb") as stream:
                length, check = _HEAD.unpack(stream.read(_HEAD.size))
                head = stream.read(length)
                if zlib.crc32(head) != check:
                    raise SpoolError(f"{path} is damaged")
                told = json.loads(head)
                tensors = [_read(stream, dtype, shape) for dtype, shape in told["tensors"]]
        except (OSError, ValueError, struct.error, KeyError) as error:
            raise SpoolError(f"{path} can't be read: {error}") from error
        self._open_log(int(told["serial"]))
        return told, tensors

    # The log.

    def append(self, line: dict[str, Any]) -> None:
        """Write one line: from now on it counts."""
        assert self._log is not None
        data = json.dumps(line, separators=(",", ":")).encode()
        try:
            os.write(self._log, b"%08x %b\n" % (zlib.crc32(data), data))
            if self.to_disk:
                os.fdatasync(self._log)
        except OSError as error:
            raise SpoolError(f"the log in {self.folder} can't be written: {error}") from error

    def lines(self, serial: int) -> Iterator[dict[str, Any]]:
        """What was written since the snapshot of entry `serial`, up to where it breaks off."""
        whole = 0
        for line in (self.folder / f"log-{serial}").read_bytes().splitlines(keepends=True):
            check, _, data = line.rstrip(b"\n").partition(b" ")
            if not line.endswith(b"\n") or check != b"%08x" % zlib.crc32(data):
                break
            whole += len(line)
            yield json.loads(data)
        assert self._log is not None
        os.ftruncate(self._log, whole)  # the rest was never acknowledged

    def files(self) -> list[Path]:
        """All that makes up the state, right after a snapshot."""
        return [path for path in sorted(self.folder.iterdir()) if path.suffix != ".part"]

    def _begin_log(self, serial: int) -> None:
        (self.folder / f"log-{serial}").write_bytes(b"")
        self._open_log(serial)

    def _open_log(self, serial: int) -> None:
        if self._log is not None:
            os.close(self._log)
        path = self.folder / f"log-{serial}"
        self._log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _forget_before(self, serial: int) -> None:
        for name in (_KEEP_NAME, "log-"):
            for number in self._numbers(name):
                if number < serial:
                    (self.folder / f"{name}{number}").unlink(missing_ok=True)

    def _numbers(self, name: str) -> list[int]:
        found = [path.name.removeprefix(name) for path in self.folder.glob(f"{name}*")]
        return sorted(int(number) for number in found if number.isdecimal())


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else memoryview(b"")


def _read(stream: Any, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype))
    into = _bytes(tensor)
    if into.nbytes and stream.readinto(into) != into.nbytes:
        raise SpoolError("a snapshot breaks off")
    return tensor
