"""Training on N ranks is training on one: the same weights, the same decisions, the same bits in every rerun."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dist_mp.data.base import Batch, Dataset, Split
from tests.train.runs import alone, one_thread, settings, train


@pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=150)
def test_ranks_agree_with_one(ranks: int) -> None:
    """FP32, the same global batch of 24 rows, shots of unequal length, clipping active, 20 steps: within 1e-5."""
    from dist_mp.comm.world import World

    one_thread()
    with World.open() as world:
        cases = {"plain": (24 // ranks, 1), "accumulated": (12 // ranks, 2)}
        reference, expected = train(alone(world), settings(train={"batch_size": 24}))
        assert expected.applied_steps == 20
        for name, (rows, accumulation) in cases.items():
            batch = {
                "batch_size": rows,
                "accumulation": accumulation,
                "global_batch": 24,
                "eval_batch_size": 24 // ranks,
            }
            parts, summary = train(world, settings(train=batch))
            for a, b in zip(parts.masters.values(), reference.masters.values(), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5, err_msg=name)
            assert summary.metrics["loss"] == pytest.approx(expected.metrics["loss"], abs=1e-5)
            assert summary.metrics["auc"] == pytest.approx(expected.metrics["auc"], abs=1e-9)


@pytest.mark.mpi(ranks=[2], timeout=150)
def test_reruns_are_equal_to_the_bit(tmp_path: Path) -> None:
    """Two runs in 16 bits with dropout, loss scaling and both algorithms of our own."""
    from dist_mp.comm.world import World

    one_thread()
    with World.open() as world:
        hashes = []
        for precision, algorithm in (("fp16", "shared"), ("fp16", "pieces"), ("bf16", "shared")):
            config = settings(
                precision=precision, model={"dropout": 0.2}, exchange={"algorithm": algorithm}, train={"max_steps": 8}
            )
            lines = []
            for attempt in range(2):
                path = tmp_path / f"{precision}-{algorithm}-{attempt}.jsonl"
                _, summary = train(world, config, records=path if world.rank == 0 else None)
                hashes.append(summary.weights)
                if world.rank == 0:
                    lines.append([line for line in path.read_text().splitlines() if '"check"' in line])
            assert hashes[-1] == hashes[-2]
            assert len(set(map(tuple, lines))) <= 1
        assert hashes[0] == hashes[2], "one node: both algorithms sum in rank order"
        assert hashes[0] != hashes[4]


class Poisoned(Split):
    """A split whose every fifth global batch has a NaN in one row: in row 0 at first, then in
    row `stride`, and so on; batches are counted over all epochs."""

    def __init__(self, split: Split, stride: int) -> None:
        self._split, self._stride = split, stride
        self._number = 0

    def steps(self, epoch: int, global_rows: int) -> int:
        return self._split.steps(epoch, global_rows)

    def batches(self, epoch: int, global_rows: int, first_row: int, rows: int, start_step: int = 0) -> Iterator[Batch]:
        for batch in self._split.batches(epoch, global_rows, first_row, rows, start_step):
            number, self._number = self._number, self._number + 1
            bad = number // 5 * self._stride % global_rows - first_row
            if number % 5 == 2 and 0 <= bad < rows:
                inputs = batch.inputs.copy()
                inputs[bad, 0, 0] = np.nan
                # A padded row would hide the NaN, as it should.
                weight = batch.weight.copy()
                weight[bad, 0] = 1.0
                batch = replace(batch, inputs=inputs, weight=weight)
            yield batch


class PoisonedDataset(Dataset):
    """A data set that trains on :class:`Poisoned`."""

    def __init__(self, dataset: Dataset, stride: int) -> None:
        self.spec, self.valid, self.train = dataset.spec, dataset.valid, Poisoned(dataset.train, stride)

    def describe(self) -> str:
        return "poisoned"


@pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=150)
def test_nan_on_any_rank_skips_the_step_on_all(ranks: int) -> None:
    """Weights and scale are compared after every step; the loss is finite again after a poisoned one."""
    from dist_mp.comm.world import World
    from dist_mp.data.open import open_dataset

    one_thread()
    with World.open() as world:
        for precision in ("fp16", "fp32"):
            config = settings(
                precision=precision,
                # Low enough that nothing overflows but what is poisoned.
                loss_scale={"mode": "dynamic", "initial": 1024.0, "growth_interval": 1000},
                train={"batch_size": 4, "max_steps": 5 * ranks, "check_weights_every": 1},
            )
            parts, summary = train(world, config, PoisonedDataset(open_dataset(config), stride=4))
            assert summary.skipped_steps == ranks, "each rank was hit once"
            assert summary.applied_steps == 4 * ranks
            assert summary.loss_scale == 2.0 ** (10 - ranks)
            assert np.isfinite(summary.metrics["loss"])
            assert all(np.isfinite(v).all() for v in parts.masters.values())


@pytest.mark.mpi(ranks=[2], timeout=150)
def test_every_optimizer_stays_in_step() -> None:
    """The ranks' weights are compared after every step."""
    from dist_mp.comm.world import World

    one_thread()
    with World.open() as world:
        seen = set()
        for name in ("sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "adagrad"):
            config = settings(
                precision="bf16",
                optimizer={"name": name, "weight_decay": 0.01},
                train={"max_steps": 3, "check_weights_every": 1},
            )
            seen.add(train(world, config)[1].weights)
        assert len(seen) == 7


@pytest.mark.mpi(ranks=[1], timeout=100)
def test_update_does_not_depend_on_the_loss_scale() -> None:
    """Scale 2^15 against scale 1: to the bit in FP32 (a power of two), within rounding in FP16; clipping is active."""
    from dist_mp.comm.world import World

    one_thread()
    with World.open() as world:
        moved = {}
        for precision in ("fp32", "fp16"):
            for scale in (1.0, 2.0**15):
                config = settings(
                    precision=precision,
                    loss_scale={"mode": "constant", "initial": scale},
                    optimizer={"name": "sgd", "clip_norm": 0.1, "l2": 0.01},
                    train={"max_steps": 1},
                )
                parts, summary = train(world, config)
                assert summary.applied_steps == 1
                moved[precision, scale] = parts.masters.values()
        start = train(world, settings(train={"max_steps": 1}, schedule={"base": 1e-30}))[0].masters.values()
        for i, first in enumerate(start):
            np.testing.assert_array_equal(moved["fp32", 1.0][i], moved["fp32", 2.0**15][i])
            step = moved["fp32", 1.0][i] - first
            bound = 0.02 * np.abs(step).max()
            for scale in (1.0, 2.0**15):
                np.testing.assert_allclose(moved["fp16", scale][i] - first, step, rtol=0.02, atol=bound)


@pytest.mark.mpi(ranks=[2], timeout=60)
def test_too_many_skips_end_the_run() -> None:
    """When every step overflows, the run says that scaling is not the cause."""
    from dist_mp.comm.world import World
    from dist_mp.errors import UserError

    one_thread()
    with World.open() as world:
        config = settings(
            precision="bf16",
            loss_scale={"max_skips": 4},
            schedule={"base": 1e30},
            optimizer={"name": "sgd", "clip_norm": 0.0},
        )
        with pytest.raises(UserError, match=r"4 steps in a row .* cannot be the cause: .* learning rate"):
            train(world, config)


@pytest.mark.mpi(ranks=[2], timeout=150)
def test_training_with_8_bits_and_1_bit_on_the_wire() -> None:
    """8 bits learn as 32 do; one bit learns with error feedback; the ranks stay equal."""
    from dist_mp.comm.world import World

    one_thread()
    with World.open() as world:
        loss = {}
        for codec, feedback in (("fp32", False), ("dynamic_tree", False), ("dynamic_tree", True), ("one_bit", True)):
            exchange = {"codec": codec, "error_feedback": feedback, "block": 64}
            config = settings(exchange=exchange, train={"max_steps": 30, "check_weights_every": 1})
            summary = train(world, config)[1]
            loss[codec, feedback] = summary.metrics["loss"]
            assert summary.applied_steps == 30
        start = train(world, settings(train={"max_steps": 1}, schedule={"base": 1e-30}))[1].metrics["loss"]
        exact = loss["fp32", False]
        assert exact < 0.9 * start
        assert loss["dynamic_tree", False] == pytest.approx(exact, rel=0.05)
        assert loss["dynamic_tree", True] == pytest.approx(exact, rel=0.05)
        assert loss["one_bit", True] < 0.5 * (exact + start)
