"""The plan of an epoch: every step of every sequence once, in order, in one slot, whatever the sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_mp.data.slots import Pieces, SlotPlan, plan_slots, shuffled_order


def plan_of(lengths: list[int], window: int, rows: int, seed: tuple[int, ...] = (3, 0)) -> SlotPlan:
    sizes = np.array(lengths, np.int64)
    return plan_slots(sizes, shuffled_order(sizes, rows, seed), window, rows)


CASES = given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=17), window=st.integers(1, 12), rows=st.integers(1, 20)
)


@CASES
@settings(max_examples=200, deadline=None)
def test_every_step_is_visited_once(lengths: list[int], window: int, rows: int) -> None:
    plan = plan_of(lengths, window, rows)
    visits = [np.zeros(length, int) for length in lengths]
    for sequence, position, valid in zip(plan.sequence.flat, plan.position.flat, plan.valid.flat, strict=True):
        if sequence >= 0:
            visits[sequence][position : position + valid] += 1
    assert all((visit == 1).all() for visit in visits)
    assert plan.valid.sum() == sum(lengths)


@CASES
@settings(max_examples=200, deadline=None)
def test_a_slot_works_through_one_sequence_at_a_time(lengths: list[int], window: int, rows: int) -> None:
    plan = plan_of(lengths, window, rows)
    slot_of: dict[int, int] = {}
    for slot in range(rows):
        previous, end = -1, 0
        for step in range(plan.steps):
            sequence, position = int(plan.sequence[step, slot]), int(plan.position[step, slot])
            if sequence < 0:
                assert plan.reset[step, slot]
                assert plan.valid[step, slot] == 0
                assert (plan.sequence[step:, slot] < 0).all()
                break
            assert plan.reset[step, slot] == (sequence != previous)
            assert position == (end if sequence == previous else 0)
            assert slot_of.setdefault(sequence, slot) == slot
            previous, end = sequence, position + int(plan.valid[step, slot])
            assert plan.valid[step, slot] == min(window, lengths[sequence] - position)


@CASES
@settings(max_examples=100, deadline=None)
def test_no_slot_rests_while_sequences_wait(lengths: list[int], window: int, rows: int) -> None:
    plan = plan_of(lengths, window, rows)
    windows = [-(-length // window) for length in lengths]
    assert max(max(windows), -(-sum(windows) // rows)) <= plan.steps
    # Greedy dealing: when the last sequence begins, every slot has been busy until then.
    assert plan.steps <= sum(windows) / rows + max(windows)


def test_padding_stands_at_the_end_of_the_last_window() -> None:
    plan = plan_of([10], 4, 2)
    assert plan.valid.max(axis=1).tolist() == [4, 4, 2]
    assert plan.position.max(axis=1).tolist() == [0, 4, 8]


def test_order_is_a_permutation_that_changes_with_the_epoch_only() -> None:
    lengths = np.random.default_rng(5).integers(200, 600, 240)
    orders = [shuffled_order(lengths, 32, (1, epoch)) for epoch in range(4)]
    assert all(sorted(order) == list(range(240)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert (shuffled_order(lengths, 32, (1, 2)) == orders[2]).all()
    assert (shuffled_order(lengths, 32, (2, 2)) != orders[2]).any()


@pytest.mark.parametrize("seed", range(3))
def test_longest_last_leaves_few_slots_idle(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(200, 600, 240)
    balanced = plan_slots(lengths, shuffled_order(lengths, 32, (seed, 0)), 64, 32)
    plain = plan_slots(lengths, np.random.default_rng((seed, 0)).permutation(240), 64, 32)
    assert balanced.steps <= plain.steps
    assert (balanced.sequence < 0).mean() < 0.06


@CASES
@settings(max_examples=200, deadline=None)
def test_random_offsets_leave_nothing_out_and_begin_at_windows(lengths: list[int], window: int, rows: int) -> None:
    pieces = Pieces.whole(np.array(lengths, np.int64)).shuffled(window, rows, (3, 0), offsets=True)
    plan = pieces.plan(window, rows)
    visits = [np.zeros(length, int) for length in lengths]
    for sequence, position, valid in zip(plan.sequence.flat, plan.position.flat, plan.valid.flat, strict=True):
        if sequence >= 0:
            assert position % window == 0
            visits[sequence][position : position + valid] += 1
    assert all((visit == 1).all() for visit in visits)
    begun = plan.position[plan.reset & (plan.sequence >= 0)]
    assert (begun > 0).sum() <= min(rows, len(lengths)), "only the first sequence of a slot begins in its middle"
    if len(lengths) <= rows:
        assert not begun.any()


def test_slots_do_not_reset_together() -> None:
    """Sequences of one length, the worst case: without offsets every slot resets at the same steps."""
    lengths = np.full(400, 80, np.int64)

    def resets(offsets: bool) -> list[int]:
        plan = Pieces.whole(lengths).shuffled(10, 20, (1, 0), offsets).plan(10, 20)
        return plan.reset[1:100].sum(axis=1).tolist()

    assert set(resets(offsets=False)) == {0, 20}
    assert max(resets(offsets=True)) < 14
    first = {tuple(Pieces.whole(lengths).shuffled(10, 20, (1, epoch), True).begin[:20]) for epoch in range(3)}
    assert len(first) == 3
    assert min(map(len, map(set, first))) > 4
