"""Buckets and the check that all ranks have the same variables."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_mp.comm.world import World
from dist_mp.errors import UserError
from dist_mp.exchange.plan import GRAIN, check_fingerprint, fingerprint, flat_bucket, plan_buckets

SHAPES = st.lists(st.lists(st.integers(0, 40), max_size=3).map(tuple), max_size=20)


@given(shapes=SHAPES, kib=st.integers(1, 40), block=st.sampled_from([1, 24, 256]))
def test_every_gradient_has_one_slot_in_reverse_order(shapes: list[tuple[int, ...]], kib: int, block: int) -> None:
    paths = [f"layer/{i}" for i in range(len(shapes))]
    plan = plan_buckets(paths, shapes, kib / 1024, block)
    slots = [slot for bucket in plan for slot in bucket.slots]
    assert [slot.index for slot in slots] == list(reversed(range(len(shapes))))
    for slot in slots:
        assert (slot.path, slot.shape, slot.numel) == (paths[slot.index], shapes[slot.index], math.prod(slot.shape))
    for bucket in plan:
        end = 0
        for slot in bucket.slots:
            assert slot.offset == end and slot.offset % block == 0 and slot.offset % GRAIN == 0
            end = math.ceil((slot.offset + slot.numel) / math.lcm(block, GRAIN)) * math.lcm(block, GRAIN)
        assert bucket.length == end
        assert len(bucket.slots) == 1 or bucket.length * 4 <= kib * 1024
    for bucket, following in pairwise(plan):
        grain = math.lcm(block, GRAIN)
        room = math.ceil(following.slots[0].numel / grain) * grain
        assert (bucket.length + room) * 4 > kib * 1024 or room == 0
    assert plan == plan_buckets(paths, shapes, kib / 1024, block)


def test_a_large_gradient_has_a_bucket_to_itself() -> None:
    plan = plan_buckets(["a", "big", "c"], [(10,), (1 << 20, 3), (10,)], 1.0)
    assert [[slot.path for slot in bucket.slots] for bucket in plan] == [["c"], ["big"], ["a"]]


def test_flat_bucket_is_one_slot() -> None:
    assert flat_bucket(17).length == 32 and flat_bucket(17).slots[0].numel == 17
    assert flat_bucket(0).length == 0


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_ranks_with_the_same_variables_pass() -> None:
    with World.open() as world:
        check_fingerprint(world, fingerprint(["a", "b"], [(2, 3), ()], ["float16", "float32"]))
        check_fingerprint(world, [])


@pytest.mark.mpi(ranks=[2, 3, 4])
def test_the_first_difference_is_named_on_every_rank() -> None:
    with World.open() as world:
        last = world.rank == world.size - 1
        cases = [
            (
                (["a", "b"], [(2,), (3, 4 if last else 5)], ["float16"] * 2),
                "variable 1",
                "'b [3, 5] float16'",
                "'b [3, 4] float16'",
            ),
            (
                (["a", "x" if last else "b"], [(2,), (3,)], ["float16"] * 2),
                "variable 1",
                "'b [3] float16'",
                "'x [3] float16'",
            ),
            ((["a"], [(2,)], ["float16" if last else "float32"]), "variable 0", "'a [2] float32'", "'a [2] float16'"),
            (
                (["a", "b"][: 1 if last else 2], [(2,), (3,)][: 1 if last else 2], ["f"] * (1 if last else 2)),
                "variable 1",
                "'b [3] f'",
                "'nothing'",
            ),
        ]
        for arguments, *words in cases:
            with pytest.raises(UserError, match=f"rank 0 .* rank {world.size - 1}") as caught:
                check_fingerprint(world, fingerprint(*arguments))
            text = str(caught.value)
            assert "\n" not in text
            assert re.search(".*".join(re.escape(word) for word in words), text), text
            assert len(set(world.allgather(text))) == 1
