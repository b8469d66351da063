"""A run that was interrupted and resumed is the run that was not: to the bit on the same number of ranks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dist_mp.config import Config
from dist_mp.train.checkpoint_files import best_checkpoint, list_checkpoints, newest_checkpoint, open_checkpoint
from tests.train.runs import alone, make_parts, one_thread, resume, settings


def words(path: Path, count: int) -> None:
    """A text that a small model can learn something from."""
    rng = np.random.default_rng(3)
    for part, size in (("train", count), ("valid", 60), ("test", 60)):
        chosen = np.cumsum(rng.integers(1, 4, size)) % 17
        (path / f"{part}.txt").write_text(" ".join(f"w{w}" for w in chosen) + "\n")


def language(corpus: Path, **sections: Any) -> Config:
    values: dict[str, Any] = {
        "precision": "bf16",
        "data": {"kind": "text", "path": str(corpus), "length": 6},
        "model": {"kind": "language", "layers": 2, "units": 8, "dropout": 0.2},
        "optimizer": {"name": "nesterov", "clip_norm": 1.0},
        "schedule": {"base": 0.3, "decay": 0.7, "warmup_steps": 5},
        "train": {"batch_size": 3, "epochs": 3, "check_weights_every": 1},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section
    return Config.model_validate(values)


@pytest.mark.mpi(ranks=[2], timeout=280)
def test_resumed_run_is_the_run_that_was_not_interrupted(tmp_path: Path) -> None:
    """In the middle of an epoch: losses, rates, scales, skipped steps, order, weights, evaluation, patience."""
    from dist_mp.comm.world import World

    one_thread()
    with World.open() as world:
        if world.rank == 0:
            words(tmp_path, 400)
        world.barrier()
        cases = {
            # The scale falls at first, since its start overflows, and rises after 3 clean steps; Adam; micro-batches.
            "scale": settings(
                precision="fp16",
                loss_scale={"mode": "dynamic", "initial": 2.0**24, "growth_interval": 3},
                optimizer={"name": "adam"},
                model={"dropout": 0.2},
                train={"batch_size": 2, "accumulation": 2, "max_steps": 26, "epochs": 3, "check_weights_every": 1,
                       "patience": 9, "eval_every": 1},
            ),
            "feedback": settings(
                exchange={"codec": "one_bit", "error_feedback": True},
                train={"batch_size": 4, "max_steps": 16, "check_weights_every": 1},
            ),
            "text": language(tmp_path),
        }  # fmt: skip
        for name, config in cases.items():
            run = tmp_path / name
            parts = make_parts(world, config, run / "whole")
            if world.rank == 0:
                shutil.copytree(run / "whole", run / "parts")
            world.barrier()
            whole, summary, kept, _ = resume(parts, run / "whole")
            trace = []
            for step in (*((6, 9) if name == "text" else (5, 15)), None):
                trainer, final, part, notes = resume(parts, run / "parts", stop_after=step, stop_rank=1)
                assert notes == []
                assert trainer.stopped_by == (15 if step else 0), name
                trace += part.trace()
                if name == "scale" and step == 15:
                    assert int(parts.loss_scale.clean_steps) > 0, "a stop between two changes of the scale"
            assert trace == kept.trace(), name
            assert final.weights == summary.weights and final.loss_scale == summary.loss_scale
            assert (final.applied_steps, final.skipped_steps) == (summary.applied_steps, summary.skipped_steps)
            assert trainer._at == whole._at, "patience, best metric, cursor"
            scales = [float(entry[4]) for entry in trace if entry[0] != "epoch"]
            assert name != "scale" or (np.diff(scales).min() < 0 < np.diff(scales).max() and summary.skipped_steps)
            if name == "text":
                patience_ends(parts, run / "whole")
            parts.allreduce.close()


def patience_ends(parts: Any, run: Path) -> None:
    """At a rate of about 0 old momentum makes the evaluations worse: the run ends, and does not go on again."""
    config = parts.config
    train = config.train.model_copy(update={"epochs": 9, "patience": 2, "metric": "perplexity"})
    rate = config.schedule.model_copy(update={"base": 1e-30})
    parts.config = config.model_copy(update={"train": train, "schedule": rate})
    for steps in (True, False):
        trainer, _, kept, _ = resume(parts, run)
        assert trainer.ended_early.startswith("stopped early: train.patience is over, epoch 3 was the best with ")
        assert trainer._at.epoch == 5 and trainer._at.best.waited == 2
        assert any(record.kind == "step" for record in kept.records) == steps
        assert trainer._checkpointer.metric == "perplexity"
    assert best_checkpoint(run).manifest.epoch == 3
    manifests = [open_checkpoint(path).manifest for path in list_checkpoints(run)]
    assert [m.epoch for m in manifests] == [5, 4, 3]
    assert min(m.metrics["perplexity"] for m in manifests) == manifests[-1].metrics["perplexity"]


@pytest.mark.mpi(ranks=[3], timeout=280)
def test_another_number_of_ranks_goes_on(tmp_path: Path) -> None:
    """2 ranks, then 3, then 1, each stopped in the middle of an epoch: what is left of it is trained on once.

    With the same global batch the run is that of one rank within rounding, recurrent state included.
    """
    from dist_mp.comm.world import World

    one_thread()
    with World.open() as three:
        pair = three.comm.Split(0 if three.rank < 2 else 1)
        worlds = {2: World(three.mpi, comm=pair), 3: three, 1: alone(three)}
        if three.rank == 0:
            words(tmp_path, 500)
        three.barrier()
        same_batch(worlds, three.rank, tmp_path)
        another_batch(worlds, three.rank, tmp_path)
        worlds[2].close()
        pair.Free()


def same_batch(worlds: dict[int, Any], rank: int, folder: Path) -> None:
    """12 rows of a text, on 2, 3 and 1 ranks; large files in two pieces."""

    def of(ranks: int) -> Config:
        size = {"batch_size": 12 // ranks, "epochs": 1, "eval_batch_size": 12 // ranks}
        rate = {"rule": "constant"}
        config = language(folder, train=size, model={"dropout": 0.0}, schedule=rate)
        return config.model_copy(update={"precision": "fp32"})

    run = folder / "same"
    if rank < 2:
        parts = make_parts(worlds[2], of(2), run)
        if rank == 0:
            shutil.copytree(run, folder / "whole")
        resume(parts, run, stop_after=2, piece_bytes=600)
        files = newest_checkpoint(run).manifest.files
        pieces = {name.split("-", 1)[1] for name in files if not name.startswith("rank")}
        assert pieces == {"00000-of-00002.safetensors", "00001-of-00002.safetensors"}
    worlds[3].barrier()
    parts = make_parts(worlds[3], of(3))
    assert resume(parts, run, stop_after=4, stop_rank=2)[3] == ["3 ranks go on where 2 stopped"]
    if rank == 0:
        parts = make_parts(worlds[1], of(1))
        _, summary, kept, notes = resume(parts, run)
        assert notes == ["1 ranks go on where 3 stopped"]
        got = parts.masters.values()
        _, expected, whole, _ = resume(parts, folder / "whole")
        assert [entry[0] for entry in kept.trace()[:-1]] == list(range(5, len(whole.trace()) - 1))
        assert summary.metrics["loss"] == pytest.approx(expected.metrics["loss"], abs=1e-6)
        for own, wanted in zip(got, parts.masters.values(), strict=True):
            np.testing.assert_allclose(own, wanted, atol=1e-6)
    worlds[3].barrier()


def another_batch(worlds: dict[int, Any], rank: int, folder: Path) -> None:
    """3 rows a rank of shots of unequal length, one bit on the wire: the time steps of an epoch are counted."""
    config = settings(
        exchange={"codec": "one_bit", "error_feedback": True},
        train={"batch_size": 3, "epochs": 1, "max_steps": None},
    )
    run = folder / "other"
    if rank < 2:
        resume(make_parts(worlds[2], config, run), run, stop_after=2)
    worlds[3].barrier()
    parts = make_parts(worlds[3], config)
    before = newest_checkpoint(run)
    *_, notes = resume(parts, run, stop_after=4, stop_rank=1)
    assert notes == [
        "3 ranks go on where 2 stopped",
        "each rank has the mean of the residuals of error feedback",
        "recurrent state begins at zero",
        "the global batch is 9 rows, it was 6",
    ]
    from dist_mp.train.state import restore

    restore(parts, before)
    assert sum(np.abs(residual).max() > 0 for residual in parts.allreduce.residuals()) > len(parts.task.paths) / 2
    two = [before.tensors(f"rank-0000{i}") for i in range(2)]
    for path, mean in zip(parts.task.paths, parts.allreduce.residuals(), strict=True):
        np.testing.assert_allclose(mean, (two[0][f"residual/{path}"] + two[1][f"residual/{path}"]) / 2, rtol=1e-6)
    if rank == 0:
        assert newest_checkpoint(run).manifest.cursor == [(6, 3), (9, 2)]
        one = make_parts(worlds[1], config)
        _, summary, kept, _ = resume(one, run)
        (epoch,) = (record for record in kept.records if record.kind == "epoch")
        assert summary.skipped_steps == 0
        assert epoch.steps == summary.applied_steps == 5 + sum(record.kind == "step" for record in kept.records)
        # Every valid time step of the epoch has weight 1, and a skipped step would lack.
        assert kept.weight == int(one.dataset.train.lengths.sum())
    worlds[3].barrier()
