from collections import UserDict

import pytest
import torch

from starprof.hook.batch import batch_size

IMAGES = torch.zeros(8, 3, 4, 4)
TOKENS = torch.zeros(2, 5, dtype=torch.long)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (IMAGES, (8, None)),
        ([IMAGES, torch.zeros(8)], (8, None)),
        ((TOKENS, TOKENS), (2, 10)),
        ({"labels": torch.zeros(2), "input_ids": TOKENS}, (2, 10)),
        (UserDict(input_ids=TOKENS), (2, 10)),
        (["text", {"x": IMAGES}], (8, None)),
        (torch.tensor(1.0), (None, None)),
        ("text", (None, None)),
        ([], (None, None)),
        ([[[[IMAGES]]]], (None, None)),
    ],
)
def test_samples_and_tokens_are_read_off_the_shapes(batch, expected):
    assert batch_size(batch) == expected
