"""The JSON file that nccl-tests writes with -J: the same as its table, with the places under `config.devices`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from starprof.errors import InputError
from starprof.importers.nccl.nccl_tests import MAX_PLACES, Block, name_of
from starprof.importers.source import Source

MAX_FILE = 64 << 20
MAX_CONTAINERS = 1_000_000
_FIRST_KEYS = 512


def recognises(source: Source) -> bool:
    """An object that begins as such a file does."""
    head = source.head[:_FIRST_KEYS].lstrip()
    return head[:1] == b"{" and b'"start_time"' in head and b'"args"' in head and b'"version"' in head


def blocks(source: Source) -> Iterator[Block]:
    """The run of a test that the file tells; none when it was given up before a result.

    Raises:
        InputError: the file is damaged, or no such file.
    """
    content = _content(source)
    args, config = content.get("args"), content.get("config")
    block = Block(name=name_of(str(args[0])[:1000]) if isinstance(args, list) and args else "")
    devices = _dict(config).get("devices")
    for device in (devices if isinstance(devices, list) else [])[:MAX_PLACES]:
        host, number, rank = (_dict(device).get(key) for key in ("hostname", "device", "rank"))
        if isinstance(host, str) and isinstance(number, int) and isinstance(rank, int):
            block.apart |= rank in block.ranks
            block.ranks.add(rank)
            block.places.append((host[:100].encode("utf-8", "replace").decode(), str(number)[:20]))
    results = content.get("results")
    for result in results if isinstance(results, list) else []:
        size = _dict(result).get("size")
        ways = (_rate(_dict(_dict(result).get(way)).get("bus_bw")) for way in ("out_of_place", "in_place"))
        told = [rate for rate in ways if rate is not None]
        if told and isinstance(size, int) and block.size <= size < 1 << 62:
            block.size, block.rates = size, told
    if block.rate is not None:
        yield block


def _content(source: Source) -> Mapping[str, object]:
    with source.open() as stream:
        data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE or data.count(b"{") + data.count(b"[") > MAX_CONTAINERS:
        raise InputError(f"{source.name} holds more than can be true of a result of nccl-tests")
    try:
        content = json.loads(data.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source.name} can't be read: it is cut off or no JSON") from error
    return _dict(content)


def _dict(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _rate(value: object) -> float | None:
    """GB/s; None for what is no bandwidth."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 1e9 else None  # compared first: an integer may be beyond any float
