"""The Python API: any Keras model on N ranks as on one, and a loop of one's own with averaged gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.train.runs import alone, one_thread


def samples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(62, 5, 3)).astype(np.float32)
    return x, x.sum(axis=(1, 2), keepdims=True)[:, 0] * 0.3


@pytest.mark.mpi(ranks=[1, 2, 3, 4], timeout=200)
def test_fit_on_n_ranks_equals_fit_on_one() -> None:
    import keras

    import dist_mp
    from dist_mp.config import ScheduleConfig
    from dist_mp.errors import UserError

    one_thread()

    def model(seed: int) -> keras.Model:
        keras.utils.set_random_seed(seed)
        return keras.Sequential([keras.Input((5, 3)), dist_mp.LSTM(4), keras.layers.Dense(1)])

    def run(world: dist_mp.World, net: keras.Model, rows: int, **options) -> dict[str, list[float]]:
        x, y = samples()
        schedule = ScheduleConfig(rule="constant", base=0.1, decay=0.5)
        return dist_mp.fit(
            net, (x, y), loss="mse", optimizer=keras.optimizers.SGD(momentum=0.9), schedule=schedule,
            batch_size=rows, epochs=3, validation=(x[:21], y[:21]), world=world, **options,
        )  # fmt: skip

    with dist_mp.World.open() as world:
        reference, net = model(0), model(world.rank)
        expected = run(alone(world), reference, 12)
        curves = run(world, net, 12 // world.size)
        for a, b in zip(net.get_weights(), reference.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)
        assert curves.keys() == expected.keys() == {"loss", "val_loss"}
        for name in curves:
            np.testing.assert_allclose(curves[name], expected[name], rtol=1e-4)
        assert expected["loss"][-1] < expected["loss"][0]
        assert len({w.tobytes() for w in world.allgather(net.get_weights()[0])}) == 1
        with pytest.raises(UserError, match="62 samples are fewer than a batch of 63 x"):
            run(world, model(0), 63)


@pytest.mark.mpi(ranks=[2], timeout=120)
def test_fit_goes_on_from_its_folder(tmp_path: Path) -> None:
    """3 epochs at once, and 1 and then 2 more in a new model: the same to the bit, dropout and learning rate too."""
    import keras

    import dist_mp
    from dist_mp.config import ScheduleConfig
    from dist_mp.errors import UserError

    one_thread()
    with dist_mp.World.open() as world:

        def run(folder: Path | None, epochs: int, units: int = 4) -> tuple[list[float], list[np.ndarray]]:
            keras.utils.set_random_seed(1)
            layers = [keras.layers.Dense(units), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
            net = keras.Sequential([keras.Input((5,)), *layers])
            x = np.random.default_rng(0).normal(size=(44, 5)).astype(np.float32)
            curves = dist_mp.fit(
                net, (x, x.sum(axis=1, keepdims=True)), loss="mse", optimizer="adam", epochs=epochs, batch_size=5,
                schedule=ScheduleConfig(rule="constant", base=0.01, decay=0.5, warmup_steps=8), folder=folder,
                world=world,
            )  # fmt: skip
            return curves["loss"], net.get_weights()

        losses, weights = run(None, 3)
        parts = [*run(tmp_path / "fit", 1)[0], *run(tmp_path / "fit", 2)[0]]
        last, resumed = run(tmp_path / "fit", 3)
        assert [*parts, *last] == losses
        for a, b in zip(resumed, weights, strict=True):
            np.testing.assert_array_equal(a, b)
        world.barrier()
        assert sorted(p.name for p in (tmp_path / "fit" / "checkpoints").iterdir()) == [
            "step-00000008",
            "step-00000012",
        ]
        with pytest.raises(UserError, match="is of another model or optimizer"):
            run(tmp_path / "fit", 4, units=6)


@pytest.mark.mpi(ranks=[1, 2, 3], timeout=90)
def test_own_loop_updates_by_the_mean_of_all_ranks() -> None:
    import keras
    import tensorflow as tf

    import dist_mp
    from dist_mp.errors import UserError

    one_thread()

    def make_step(optimizer, variables, rank):
        def step():
            own = 2.0 ** (rank + 1)
            gradients = [tf.fill(v.shape, tf.cast(own * (k + 1), v.dtype)) for k, v in enumerate(variables)]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        return step

    with dist_mp.World.open() as world:
        for codec, dtype in (("fp32", "float32"), ("fp16", "float16")):
            for graph in (False, True):
                variables = [keras.Variable(np.full(s, world.rank + 1.0), dtype=dtype) for s in ((3, 2), (4,))]
                optimizer = dist_mp.DistributedOptimizer(keras.optimizers.SGD(0.5), world, codec=codec)
                assert isinstance(optimizer, keras.optimizers.SGD)
                optimizer.build(variables)
                np.testing.assert_array_equal(variables[0], np.ones((3, 2)))

                step = make_step(optimizer, variables, world.rank)
                run = tf.function(step) if graph else step
                run()
                run()
                mean = np.mean([2.0 ** (r + 1) for r in range(world.size)])
                tolerance = 0.0 if world.size != 3 else 1e-2
                for k, variable in enumerate(variables):
                    np.testing.assert_allclose(
                        np.asarray(variable, np.float32), 1.0 - 2 * 0.5 * mean * (k + 1), rtol=tolerance, atol=1e-6
                    )
                assert int(optimizer.iterations) == 2
                optimizer.close()
        with pytest.raises(UserError, match="averages already"):
            dist_mp.DistributedOptimizer(optimizer, world)
        used = keras.optimizers.SGD()
        used.build(variables)
        with pytest.raises(UserError, match="has been used already"):
            dist_mp.DistributedOptimizer(used, world)
        with pytest.raises(UserError, match="codec"):
            dist_mp.DistributedOptimizer("sgd", world, codec="fp7")


def test_importing_dist_mp_loads_neither_tensorflow_nor_mpi() -> None:
    import subprocess
    import sys

    code = "import sys, dist_mp; assert not {'tensorflow', 'mpi4py', 'keras'} & set(sys.modules); dist_mp.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "module 'dist_mp' has no attribute 'nothing'" in done.stderr
