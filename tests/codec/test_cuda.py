"""CUDA kernels in Numba's simulator, bit for bit against the references."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dist_mp.codec.base import Codec
from dist_mp.codec.cuda import cuda_codec
from dist_mp.codec.reference import reference_codecs
from dist_mp.codec.table import codec_names

CHECK = Path(__file__).with_name("cuda_check.py")


def test_kernels_of_all_codecs_match_the_references_in_the_simulator() -> None:
    # The simulator is chosen when Numba is imported, so it needs a process of its own.
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(CHECK), *codec_names()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [f"{name} equal" for name in codec_names()]


def test_a_codec_without_kernels_is_refused() -> None:
    reference: Codec = reference_codecs()["linear"]
    with pytest.raises(ValueError, match="linear"):
        cuda_codec(reference)
