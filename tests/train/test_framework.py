"""Which GPU a rank takes."""

from __future__ import annotations

import pytest

from dist_mp.train.framework import gpu_number, gpu_of_rank


@pytest.mark.parametrize(
    ("gpus", "taken"), [(4, [0, 1, 2, 3]), (2, [0, 1, 0, 1]), (1, [0, 0, 0, 0]), (8, [0, 1, 2, 3])]
)
def test_ranks_of_a_node_take_its_gpus_in_turn(gpus: int, taken: list[int]) -> None:
    assert [gpu_of_rank(local_rank, gpus) for local_rank in range(4)] == taken


def test_the_number_of_a_gpu_is_in_its_name() -> None:
    assert gpu_number("/physical_device:GPU:0") == 0
    assert gpu_number("/physical_device:GPU:13") == 13
