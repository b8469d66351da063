"""Virtual workers have the bits of as many real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dist_mp.config import Config
from tests.harness.runner import ROOT
from tests.train.runs import Kept, alone, make_parts, one_thread, resume, settings
from tests.train.test_resume import language, words

STEPS = {"batch_size": 3, "max_steps": 9, "check_weights_every": 1, "eval_every": 100}


def cases(corpus: Path, ranks: int) -> dict[str, Config]:
    """Settings in which something depends on who a worker is: its rows, dropout, residuals, random numbers, state."""
    everything = settings(
        precision="fp16",
        model={"dropout": 0.3},
        schedule={"rule": "damped", "half_workers": 2.0},
        exchange={"codec": "dynamic_tree", "rounding": "stochastic", "error_feedback": True, "bucket_mib": 0.01},
        train=STEPS | {"batch_size": 1, "accumulation": 2},
    )
    if ranks == 3:
        return {
            "everything": everything,
            "text": language(corpus, train={"batch_size": 2, "max_steps": 12, "epochs": 2}),
        }
    # A piece of a mean has a scale of its own, so the number of pieces counts. The bucket is too large to be gathered.
    whole = settings(model={"units": 64}, exchange={"codec": "linear", "block": 0}, train=STEPS)
    return {"everything": everything, "whole": whole}


def virtual(config: Config, workers: int) -> Config:
    values = config.model_dump()
    values["train"]["virtual_workers"] = workers
    return Config.model_validate(values)


def trained(world: Any, config: Config) -> tuple[str, list[str]]:
    """Hash of the weights, and the learning rates."""
    from dist_mp.train.loop import Trainer
    from dist_mp.train.progress import ProgressDisplay

    parts = make_parts(world, config)
    kept = Kept()
    summary = Trainer(parts, kept, ProgressDisplay(None, 1)).run("")
    assert summary is not None and summary.applied_steps > 5
    parts.allreduce.close()
    return summary.weights, [repr(r.learning_rate) for r in kept.records if r.kind == "step"]


@pytest.mark.mpi(ranks=[3, 4], timeout=290)
def test_virtual_workers_are_ranks_to_the_bit(ranks: int, tmp_path: Path) -> None:
    from dist_mp.comm.world import World

    one_thread()
    with World.open() as world:
        if world.rank == 0:
            words(tmp_path, 400)
        world.barrier()
        pair = world.comm.Split(int(world.rank >= 2), world.rank)
        two = World(world.mpi, comm=pair)
        for name, config in cases(tmp_path, ranks).items():
            real = trained(world, config)
            assert trained(world, virtual(config, ranks)) == real, f"{name}: each rank is one worker"
            assert trained(alone(world), virtual(config, ranks)) == real, f"{name}: one rank is all workers"
            if ranks == 4:
                assert trained(two, virtual(config, 4)) == real, f"{name}: two ranks are two workers each"
            else:
                six = trained(world, virtual(config, 6))
                assert six != real, name
                if world.rank < 2:
                    assert trained(two, virtual(config, 6)) == six, f"{name}: 6 workers on 2 and on 3 ranks"
            world.barrier()


@pytest.mark.mpi(ranks=[2], timeout=200)
def test_workers_keep_their_residuals_over_a_change_of_ranks(tmp_path: Path) -> None:
    """Two ranks stop and one goes on as two virtual workers, and the other way; the weights are those of two ranks."""
    from dist_mp.comm.world import World
    from dist_mp.train.checkpoint_files import newest_checkpoint
    from dist_mp.train.state import restore

    one_thread()
    with World.open() as world:
        config = settings(exchange={"codec": "one_bit", "error_feedback": True}, train=STEPS)
        parts = make_parts(world, config, tmp_path / "run")
        trainer, _, _, _ = resume(parts, tmp_path / "run", stop_after=5, stop_rank=1)
        assert trainer.stopped_by
        parts.allreduce.close()
        own = [np.abs(r).max() for r in parts.allreduce.residuals()]
        assert max(own) > 0
        whole = trained(world, config)[0]
        if world.rank == 0:
            single = make_parts(alone(world), virtual(config, 2))
            _, summary, _, notes = resume(single, tmp_path / "run")
            assert summary.weights == whole
            assert notes == ["1 ranks go on where 2 stopped"]
            single.allreduce.close()
            # Another number of workers cannot have these residuals; each gets their mean, and the run says so.
            four = make_parts(alone(world), virtual(config, 4))
            checkpoint = newest_checkpoint(tmp_path / "run")
            restore(four, checkpoint)
            before = [single_rows.mean(axis=0) for single_rows in single.allreduce.residuals()]
            for after, mean in zip(four.allreduce.residuals(), before, strict=True):
                assert after.shape[0] == 4 and np.allclose(after, mean, atol=1e-7)
            assert "each rank has the mean of the residuals of error feedback" in restore(four, checkpoint)[1]
            four.allreduce.close()
            single = make_parts(alone(world), virtual(config, 2), tmp_path / "back")
            resume(single, tmp_path / "back", stop_after=5)
            single.allreduce.close()
        world.barrier()
        parts = make_parts(world, config)
        _, summary, _, notes = resume(parts, tmp_path / "back")
        assert summary.weights == whole and notes == ["2 ranks go on where 1 stopped"]
        parts.allreduce.close()


@pytest.mark.mpi(ranks=[2, 3], timeout=60)
def test_several_nodes_are_refused(ranks: int) -> None:
    from dist_mp.codec.table import codec_by_name
    from dist_mp.comm.world import World
    from dist_mp.errors import UserError
    from dist_mp.exchange.plan import flat_bucket
    from dist_mp.exchange.virtual import VirtualAllreduce

    with World.open(ranks_per_node=ranks - 1) as world:
        with pytest.raises(UserError, match="needs all ranks on one node, they are on 2; run fewer ranks"):
            VirtualAllreduce(world, codec_by_name("fp16"), [flat_bucket(20)], 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.virtual_workers=3"], "error: train.virtual_workers: 3 cannot be dealt evenly to 2 ranks; give a "),
        (["train.virtual_workers=4", "exchange.algorithm=native"], "error: exchange.algorithm: native has no virtual"),
        (["train.virtual_workers=4", "train.global_batch=5"], "error: train.global_batch: is 5, but "),
        (["train.virtual_workers=0"], "error: train.virtual_workers=0: must be an integer > 0"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(arguments: list[str], message: str, run_cli: Any) -> None:
    done = run_cli(["run", "-n", "2", str(ROOT / "configs" / "quickstart.yaml"), *arguments], timeout=60)
    assert done.rc == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("dist-mp: running as root")]
    assert len(said) == 1 and said[0].startswith(message), done.stderr
