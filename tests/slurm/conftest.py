"""One Slurm cluster for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import REQUIRED, Cluster, NoClusterError


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real slurmctld with two slurmd. Skips where Slurm cannot run, unless DIST_MP_REQUIRE_SLURM is set."""
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
    except NoClusterError as error:
        cluster.stop()
        if os.environ.get(REQUIRED):
            pytest.fail(f"no Slurm cluster: {error}")
        pytest.skip(f"no Slurm cluster: {error}")
    before = {name: os.environ.get(name) for name in cluster.environment}
    os.environ.update(cluster.environment)
    try:
        yield cluster
    finally:
        cluster.stop()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    assert not cluster.left()
