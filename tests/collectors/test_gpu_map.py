import pytest

from starprof.collectors.gpu_map import AmbiguousDeviceError, Card, locate

UUIDS = (
    "GPU-aaaa0000-0000-0000-0000-000000000000",
    "GPU-aabb1111-0000-0000-0000-000000000001",
    "GPU-cc002222-0000-0000-0000-000000000002",
    "GPU-dd333333-0000-0000-0000-000000000003",
)
MIGS = ("MIG-11110000-0000-0000-0000-000000000000", "MIG-22220000-0000-0000-0000-000000000001")
ALIKE = tuple(Card(uuid, f"00000000:{0x10 * (i + 1):02X}:00.0", "NVIDIA A") for i, uuid in enumerate(UUIDS))
MIXED = (*ALIKE[:3], Card(UUIDS[3], "00000000:40:00.0", "NVIDIA B"))
SPLIT = (*ALIKE[:3], Card(UUIDS[3], "00000000:40:00.0", "NVIDIA A", MIGS, mig_enabled=True))


def uuid(device, shown=None, cards=ALIKE, **environ):
    if shown is not None:
        environ["CUDA_VISIBLE_DEVICES"] = shown
    return locate(cards, device, environ).uuid


@pytest.mark.parametrize("device", range(4))
def test_without_a_setting_devices_are_numbered_in_pci_order(device):
    shuffled = (ALIKE[2], ALIKE[0], ALIKE[3], ALIKE[1])
    assert uuid(device, cards=shuffled) == UUIDS[device]


@pytest.mark.parametrize(
    ("shown", "devices"),
    [
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 3 , 1 ", [3, 1]),
        (UUIDS[1], [1]),
        (f"{UUIDS[3]},{UUIDS[0]}", [3, 0]),
        ("GPU-cc", [2]),
        ("GPU-DD333333", [3]),
        (f"GPU-aabb,{UUIDS[0]}", [1, 0]),
    ],
)
def test_listed_devices_are_numbered_in_the_order_of_the_list(shown, devices):
    assert [uuid(i, shown) for i in range(len(devices))] == [UUIDS[i] for i in devices]
    assert uuid(len(devices), shown) is None


@pytest.mark.parametrize("shown", ["", "-1", "NoDevFiles", "GPU-ffff", "9", "none", "-1,0"])
def test_a_list_that_names_no_gpu_shows_none(shown):
    placement = locate(ALIKE, 0, {"CUDA_VISIBLE_DEVICES": shown})
    assert placement.uuid is None
    assert "not visible" in placement.reason


def test_the_list_ends_at_the_first_entry_that_names_no_gpu():
    assert [uuid(i, "2,-1,1") for i in range(3)] == [UUIDS[2], None, None]


def test_a_gpu_named_twice_hides_all():
    placement = locate(ALIKE, 0, {"CUDA_VISIBLE_DEVICES": "1,1"})
    assert placement.uuid is None
    assert "twice" in placement.reason


def test_a_shortened_uuid_that_fits_two_gpus_is_an_error_that_names_both():
    with pytest.raises(AmbiguousDeviceError, match=f"{UUIDS[0]} and {UUIDS[1]}"):
        uuid(0, "GPU-aa")


def test_unequal_gpus_numbered_by_speed_are_not_guessed():
    placement = locate(MIXED, 0, {"CUDA_VISIBLE_DEVICES": "2"})
    assert placement.uuid is None
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in placement.reason
    assert uuid(0, cards=MIXED) is None
    assert uuid(0, "2", cards=MIXED, CUDA_DEVICE_ORDER="FASTEST_FIRST") is None


def test_unequal_gpus_in_pci_order_are_known():
    assert uuid(0, "3", cards=MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == UUIDS[3]


def test_a_uuid_needs_no_order():
    assert uuid(0, UUIDS[3], cards=MIXED) == UUIDS[3]


@pytest.mark.parametrize("text", [UUIDS[2], UUIDS[2].removeprefix("GPU-"), "cc002222-0000"])
def test_what_torch_reports_settles_it(text):
    assert locate(MIXED, 0, {"CUDA_VISIBLE_DEVICES": "1"}, torch_uuid=text).uuid == UUIDS[2]


def test_torch_reports_a_mig_instance_like_a_gpu():
    assert locate(SPLIT, 0, {}, torch_uuid=MIGS[1].replace("MIG-", "GPU-")).uuid == MIGS[1]


def test_a_uuid_of_torch_that_no_gpu_has_is_unknown_with_the_reason():
    placement = locate(ALIKE, 0, {}, torch_uuid="GPU-eeee")
    assert placement.uuid is None
    assert "GPU-eeee" in placement.reason


def test_a_cut_uuid_of_torch_that_fits_two_gpus_is_an_error():
    with pytest.raises(AmbiguousDeviceError):
        locate(ALIKE, 0, {}, torch_uuid="aa")


def test_a_mig_instance_is_named_by_its_own_uuid_and_is_the_only_device():
    assert uuid(0, f"{MIGS[1]},{MIGS[0]}", cards=SPLIT) == MIGS[1]
    assert uuid(1, f"{MIGS[1]},{MIGS[0]}", cards=SPLIT) is None


def test_a_split_card_that_is_named_as_a_whole_is_not_guessed():
    placement = locate(SPLIT, 0, {"CUDA_VISIBLE_DEVICES": "3"})
    assert placement.uuid is None
    assert "split into 2 MIG instances" in placement.reason


def test_a_card_with_one_mig_instance_means_that_instance():
    cards = (Card(UUIDS[0], "00000000:10:00.0", "NVIDIA A", MIGS[:1], mig_enabled=True),)
    assert uuid(0, "0", cards=cards) == MIGS[0]


def test_a_node_without_gpus_says_so():
    assert "no GPU" in locate((), 0, {}).reason
