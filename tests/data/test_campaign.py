"""The generator: deterministic shot by shot, physically shaped, and a problem that the last values do not solve."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dist_mp.config import CampaignData
from dist_mp.data.campaign import SCALAR_SIGNALS, Campaign, Event
from dist_mp.data.normalise import Normaliser
from dist_mp.data.partition import stratified_partition
from dist_mp.train.roc import WarningRules, roc, shot_maxima


def column(name: str) -> int:
    return [signal.name for signal in SCALAR_SIGNALS].index(name)


def test_a_shot_depends_on_the_seed_and_its_number_alone() -> None:
    few, many = Campaign(CampaignData(shots=10)), Campaign(CampaignData(shots=400))
    assert (few.lengths == many.lengths[:10]).all()
    assert (few.disruptive == many.disruptive[:10]).all()
    many.shot(3)
    for index in (9, 0, 4):
        left, right = few.shot(index), many.shot(index)
        np.testing.assert_array_equal(left.features(), right.features())
        np.testing.assert_array_equal(left.missing, right.missing)
    assert (Campaign(CampaignData(seed=8)).lengths != Campaign(CampaignData(seed=7)).lengths).any()
    assert not np.array_equal(few.shot(0).scalars[:100], few.shot(2).scalars[:100])


def test_lengths_and_classes() -> None:
    campaign = Campaign(CampaignData(shots=1000, disruptive_fraction=0.3, min_steps=50, max_steps=70))
    assert set(campaign.lengths) == set(range(50, 71))
    assert campaign.disruptive.sum() == 300
    assert [campaign.shot(i).steps for i in range(5)] == campaign.lengths[:5].tolist()


@pytest.mark.parametrize(("steps", "points"), [(1, 64), (2, 1), (5, 64), (39, 7), (41, 64), (3000, 16)])
def test_any_size_gives_finite_signals(steps: int, points: int) -> None:
    campaign = Campaign(CampaignData(shots=8, min_steps=steps, max_steps=steps, profile_points=points))
    for index in range(8):
        shot = campaign.shot(index)
        assert shot.scalars.shape == (steps, 14)
        assert shot.profiles.shape == (steps, 2, points)
        assert shot.scalars.dtype == shot.profiles.dtype == np.float32
        assert np.isfinite(shot.features()).all()
        assert shot.features().shape == (steps, 14 + 2 * points)


def test_signals_have_the_shape_of_a_discharge() -> None:
    campaign = Campaign(CampaignData(shots=60))
    for index in range(60):
        shot = campaign.shot(index)
        ip, q95 = shot.scalars[:, column("ip")], shot.scalars[:, column("q95")]
        assert ip[:5].mean() < 0.6 * ip[80:100].mean()
        assert 1.0 < ip.max() < 2.5
        if not shot.missing[column("q95")]:
            assert np.corrcoef(ip[:60], q95[:60])[0, 1] < 0
        if not shot.missing[14]:
            profile = np.median(shot.profiles[:, 0], axis=0)
            working = profile[profile != 0]
            assert working[0] > 3 * working[-1] > 0


def test_some_signals_are_missing_and_some_channels_die() -> None:
    campaign = Campaign(CampaignData(shots=300))
    shots = [campaign.shot(index) for index in range(300)]
    missing = np.array([shot.missing for shot in shots])
    assert 0.01 < missing.mean() < 0.03
    assert not missing[:, column("ip")].any()
    for shot in shots:
        assert not shot.scalars[:, shot.missing[:14]].any()
        assert not shot.profiles[:, shot.missing[14:]].any()
    stuck = [(np.diff(shot.scalars[-20:][:, ~shot.missing[:14]], axis=0) == 0).all(axis=0).any() for shot in shots]
    assert 0.03 < np.mean(stuck) < 0.15
    dead_points = [(shot.profiles[:, ~shot.missing[14:]] == 0).all(axis=0).any() for shot in shots]
    assert 0.2 < np.mean(dead_points) < 0.95


def test_events_are_zero_outside_and_highest_at_their_peak() -> None:
    envelope = Event(kind=0, begin=10, peak=30, end=50, height=2.0, curvature=-2.5).envelope(80)
    assert np.argmax(envelope) == 30
    assert envelope.max() == pytest.approx(2.0)
    assert not envelope[:11].any()
    assert not envelope[50:].any()
    assert (np.diff(envelope[10:31]) > 0).all()
    assert (np.diff(envelope[30:51]) < 0).all()


def test_the_last_values_do_not_solve_the_problem() -> None:
    """A logistic regression stays below an AUC of 0.85, on the last values of a shot and step by step."""
    settings = CampaignData(shots=700, validation_fraction=0.33)
    campaign = Campaign(settings)
    partition = stratified_partition(campaign, settings, "data.shots")
    training, held_out = partition.train, partition.valid
    shots = [campaign.shot(index) for index in range(settings.shots)]
    normaliser = Normaliser.fit(shots[index] for index in training)
    features = [normaliser.apply(shot.features(), shot.missing) for shot in shots]

    def fitted(inputs: list[np.ndarray], labels: np.ndarray) -> LogisticRegression:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return LogisticRegression(C=0.01, max_iter=200).fit(np.vstack(inputs), labels)

    labels = campaign.disruptive
    last = fitted([features[index][-1] for index in training], labels[training])
    scores = last.decision_function(np.vstack([features[index][-1] for index in held_out]))
    assert 0.6 < roc_auc_score(labels[held_out], scores) < 0.85

    every = [(index, step) for index in training for step in range(30, len(features[index]), 20)]
    warned = np.array([labels[i] and len(features[i]) - step <= settings.warning_steps for i, step in every])
    stepwise = fitted([features[index][step] for index, step in every], warned)
    rules = WarningRules(settings.warning_steps, settings.deadline_steps, settings.ignore_steps)
    maxima = [
        shot_maxima(stepwise.decision_function(features[i]), 0, len(features[i]), bool(labels[i]), rules)
        for i in held_out
    ]
    assert roc(maxima).auc < 0.85
