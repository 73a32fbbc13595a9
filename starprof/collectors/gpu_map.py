"""Which physical GPU (or MIG instance) a rank computes on, from what CUDA itself goes by. Pure: no driver is asked.

CUDA's rules (CUDA C++ programming guide, "CUDA environment variables"):
  CUDA_VISIBLE_DEVICES   unset: all cards. Otherwise a list of indices, UUIDs or beginnings of UUIDs, in the order
                         in which the process numbers its devices; the first entry that names no card ends it, so
                         "" and "-1" and "NoDevFiles" show none.
  CUDA_DEVICE_ORDER      how indices count: PCI_BUS_ID, or FASTEST_FIRST (the default), whose order is known from
                         outside only when all cards are alike, since alike cards stay in PCI order.
NVML counts by PCI bus and knows nothing of either. With MIG a process sees one instance only.

A wrong answer would show one rank the temperature of another one's card, so what the rules do not settle is None
with the reason, never a guess. The UUID that torch reports for the device settles it where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starprof.errors import UsageError

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DEVICE_ORDER = "CUDA_DEVICE_ORDER"

_UUID_PREFIXES = ("GPU-", "MIG-")
_PCI_ORDER = "PCI_BUS_ID"


class AmbiguousDeviceError(UsageError):
    """A shortened UUID in CUDA_VISIBLE_DEVICES fits several GPUs."""


@dataclass(frozen=True, slots=True)
class Card:
    """One physical GPU.

    Attributes:
        uuid: `GPU-...`, as NVML writes it.
        pci: PCI bus id such as `00000000:65:00.0`; sorts in bus order.
        name: product; cards of one name count as equally fast.
        mig: UUIDs of its MIG instances in NVML's order.
        mig_enabled: it is split up, so that no process can use the whole card.
    """

    uuid: str
    pci: str
    name: str
    mig: tuple[str, ...] = ()
    mig_enabled: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a rank computes: the UUID of a GPU or MIG instance, or None and why that is not known."""

    uuid: str | None
    reason: str = ""


def locate(cards: Sequence[Card], device: int, environ: Mapping[str, str], torch_uuid: str | None = None) -> Placement:
    """GPU of one process.

    Args:
        cards: the node's GPUs in any order.
        device: the process's own device index, as in `cuda:1`.
        environ: the process's environment when it started CUDA.
        torch_uuid: UUID of the device as torch reports it, with or without `GPU-`, possibly cut short.

    Raises:
        AmbiguousDeviceError: a shortened UUID fits several GPUs.
    """
    if torch_uuid:
        uuid = _by_uuid(cards, torch_uuid.removeprefix("GPU-"))  # torch writes a MIG instance's UUID bare as well
        return Placement(uuid, "" if uuid else f"no GPU of this node has the UUID {torch_uuid} that torch reports")
    shown = environ.get(VISIBLE_DEVICES)
    order = environ.get(DEVICE_ORDER, "")
    entries = [str(i) for i in range(len(cards))] if shown is None else [e.strip() for e in shown.split(",")]
    visible = _visible(cards, entries, order)
    if len({place.uuid for place in visible if place.uuid}) < sum(place.uuid is not None for place in visible):
        return Placement(None, f"{VISIBLE_DEVICES}={shown} names a GPU twice: CUDA shows none")
    if not 0 <= device < len(visible):
        setting = "no GPU on this node" if shown is None else f"{VISIBLE_DEVICES}={shown}"
        return Placement(None, f"device {device} is not visible: {setting} shows {len(visible)}")
    return visible[device]


def _visible(cards: Sequence[Card], entries: Sequence[str], order: str) -> list[Placement]:
    """What each of the process's device indices means, up to the first entry that names nothing."""
    visible = []
    for entry in entries:
        place = _by_name(cards, entry) if entry.startswith(_UUID_PREFIXES) else _by_index(cards, entry, order)
        if place is None:
            break
        visible.append(place)
        if place.uuid is not None and place.uuid.startswith("MIG-"):
            break  # CUDA shows a process one MIG instance
    return visible


def _by_name(cards: Sequence[Card], entry: str) -> Placement | None:
    uuid = _by_uuid(cards, entry)
    if uuid is None:
        return None
    card = next((c for c in cards if c.uuid == uuid), None)
    return _whole_or_only_instance(card) if card is not None else Placement(uuid)


def _by_index(cards: Sequence[Card], entry: str, order: str) -> Placement | None:
    if not entry.isdecimal() or int(entry) >= len(cards):
        return None
    if order != _PCI_ORDER and len({card.name for card in cards}) > 1:
        reason = f"GPUs of different kinds are numbered by speed: set {DEVICE_ORDER}={_PCI_ORDER}"
        return Placement(None, reason)
    return _whole_or_only_instance(sorted(cards, key=lambda card: card.pci)[int(entry)])


def _whole_or_only_instance(card: Card) -> Placement:
    if not card.mig_enabled:
        return Placement(card.uuid)
    if len(card.mig) == 1:
        return Placement(card.mig[0])
    reason = f"{card.uuid} is split into {len(card.mig)} MIG instances: name one in {VISIBLE_DEVICES}"
    return Placement(None, reason)


def _by_uuid(cards: Sequence[Card], text: str) -> str | None:
    """The full UUID of the GPU or MIG instance that `text` is or begins; None when there is none.

    Raises:
        AmbiguousDeviceError: it begins several.
    """
    known = [uuid for card in cards for uuid in (card.uuid, *card.mig)]
    wanted = text.casefold()
    starts = (wanted,) if text.startswith(_UUID_PREFIXES) else tuple(p.casefold() + wanted for p in _UUID_PREFIXES)
    exact = [uuid for uuid in known if uuid.casefold() in starts]
    fits = exact or [uuid for uuid in known if uuid.casefold().startswith(starts)]
    if len(fits) > 1:
        raise AmbiguousDeviceError(f"the UUID {text} fits {' and '.join(fits)}: write more of it")
    return fits[0] if fits else None
