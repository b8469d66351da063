"""A peer of ``dist-mp bench codec``: block-wise 8-bit quantisation by bitsandbytes, on one CPU thread.

Run by the interpreter of the peer's own environment, without this package: ``python bitsandbytes_codec.py FILE BLOCK``
loads the float32 array of FILE. It answers each line of standard input with one line of JSON: ``encode N`` and
``decode N`` with the seconds a call of N calls each, ``error`` with the file of the decoded array.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer until standard input ends."""
    functional: Any = importlib.import_module("bitsandbytes.functional")
    np: Any = importlib.import_module("numpy")
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    path, block = sys.argv[1], int(sys.argv[2])
    values = torch.from_numpy(np.load(path))
    codes, state = functional.quantize_blockwise(values, blocksize=block)
    for line in sys.stdin:
        what, *count = line.split()
        answer: object
        if what == "error":
            answer = str(Path(path).with_suffix(".decoded.npy"))
            np.save(str(answer), functional.dequantize_blockwise(codes, state).numpy())
        else:
            times = []
            for _ in range(int(count[0])):
                start = time.perf_counter()
                if what == "encode":
                    functional.quantize_blockwise(values, blocksize=block)
                else:
                    functional.dequantize_blockwise(codes, state)
                times.append(time.perf_counter() - start)
            answer = times
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
