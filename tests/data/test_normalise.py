"""Normalisers: each kind against its definition, a window against the whole shot, and pooled statistics."""

import numpy as np
import pytest

from dist_mp.data.normalise import CLIP, KINDS, Normaliser, feature_widths
from dist_mp.data.shot import Shot
from dist_mp.data.statistics import PooledStatistics, ShotStatistics


def shot(number: int, steps: int = 200, profiles: int = 1) -> Shot:
    rng = np.random.default_rng(number)
    scalars = rng.normal([10.0 * number, -3.0], [number + 1.0, 0.5], (steps, 2)).astype(np.float32)
    lost = np.zeros(2 + profiles, bool)
    lost[1] = number == 1
    scalars[:, lost[:2]] = 0.0
    values = rng.normal(5.0, 2.0, (steps, profiles, 3)).astype(np.float32)
    return Shot(number, False, scalars, values, lost)


SHOTS = [shot(number, 150 + 50 * number) for number in range(3)]


def test_pooled_statistics_are_those_of_all_steps() -> None:
    pooled = PooledStatistics.of([ShotStatistics.of(s) for s in SHOTS])
    first = np.concatenate([s.scalars[:, 0] for s in SHOTS]).astype(np.float64)
    second = np.concatenate([s.scalars[:, 1] for s in (SHOTS[0], SHOTS[2])]).astype(np.float64)
    profile = np.concatenate([s.profiles.ravel() for s in SHOTS]).astype(np.float64)
    for which, values in enumerate((first, second, profile)):
        np.testing.assert_allclose(pooled.mean[which], values.mean(), rtol=1e-12)
        np.testing.assert_allclose(pooled.deviation[which], values.std(), rtol=1e-12)
        assert (pooled.minimum[which], pooled.maximum[which]) == (values.min(), values.max())
    within = [s.scalars[:, 0].astype(np.float64).std() for s in SHOTS]
    np.testing.assert_allclose(pooled.typical_deviation[0], np.median(within))


def test_a_signal_that_no_shot_has() -> None:
    lost = [Shot(s.number, False, s.scalars * [1, 0], s.profiles, np.array([False, True, False])) for s in SHOTS]
    for kind in KINDS:
        fitted = Normaliser.fit(lost, kind)
        assert (fitted.mean[1], fitted.scale[1]) == (0.0, 1.0)
        assert np.isfinite(fitted.apply(lost[0].features(), lost[0].missing)).all()


def test_kinds() -> None:
    fitted = {kind: Normaliser.fit(SHOTS, kind) for kind in KINDS}
    features, missing = SHOTS[2].features(), SHOTS[2].missing
    out = {kind: normaliser.apply(features, missing) for kind, normaliser in fitted.items()}
    scale = np.median([s.scalars[:, 0].std() for s in SHOTS])
    assert not fitted["var"].mean.any()
    np.testing.assert_allclose(out["var"][:, 0], features[:, 0] / scale, rtol=1e-4)
    np.testing.assert_allclose(out["mean_var"][:, 0], (features[:, 0] - fitted["mean_var"].mean[0]) / scale, atol=1e-4)
    together = np.concatenate([fitted["min_max"].apply(s.features(), s.missing) for s in SHOTS])
    np.testing.assert_allclose(together.min(axis=0)[:2], 0.0, atol=1e-6)
    np.testing.assert_allclose(together.max(axis=0)[:2], 1.0, atol=1e-6)
    np.testing.assert_allclose([together[:, 2:].min(), together[:, 2:].max()], [0.0, 1.0], atol=1e-6)
    with pytest.raises(ValueError, match="no normaliser 'median'"):
        Normaliser.fit(SHOTS, "median")


def test_the_average_is_causal_and_weighted() -> None:
    plain, averaged = Normaliser.fit(SHOTS), Normaliser.fit(SHOTS, "averaged", average_steps=4)
    features, missing = SHOTS[0].features(), SHOTS[0].missing
    values, out = plain.apply(features, missing), averaged.apply(features, missing)
    weights = np.exp(-5.0 * np.arange(4) / 4)
    for t in (0, 1, 3, 100):
        seen = [values[t - ago] for ago in range(min(t + 1, 4))]
        np.testing.assert_allclose(out[t], np.average(seen, axis=0, weights=weights[: len(seen)]), atol=1e-5)
    later = features.copy()
    later[100:] = 1e6
    np.testing.assert_array_equal(averaged.apply(later, missing)[:100], out[:100])


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_is_a_piece_of_the_whole(kind: str) -> None:
    normaliser = Normaliser.fit(SHOTS, kind, average_steps=7)
    features, missing = SHOTS[1].features(), SHOTS[1].missing
    whole = normaliser.apply(features, missing)
    assert whole.dtype == np.float32
    assert not whole[:, 1].any()
    for begin, count in ((0, 1), (0, 200), (3, 5), (64, 64), (199, 1)):
        np.testing.assert_allclose(
            normaliser.window(features, missing, begin, count), whole[begin : begin + count], atol=1e-5
        )


def test_shots_without_profiles_and_extreme_numbers() -> None:
    bare = [shot(number, profiles=0) for number in range(2)]
    fitted = Normaliser.fit(bare)
    assert fitted.apply(bare[0].features(), bare[0].missing).shape == (200, 2)
    assert fitted.widths.tolist() == feature_widths(2, 0, 3).tolist()
    assert np.abs(fitted.apply(np.full((1, 2), 3e38, np.float32), bare[0].missing)).max() == CLIP
    huge = Shot(
        0,
        False,
        np.array([[3e38, 1e-40], [-3e38, 2e-40]], np.float32),
        np.zeros((2, 0, 0), np.float32),
        np.zeros(2, bool),
    )
    for kind in KINDS:
        assert np.isfinite(Normaliser.fit([huge], kind).apply(huge.features(), huge.missing)).all()
