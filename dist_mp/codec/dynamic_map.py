"""The 8-bit dynamic map with uniform steps within a decade, as bitsandbytes has it.

Dettmers et al., '8-bit Optimizers via Block-wise Quantization' (2022), section 1.3; the values are those of
`bitsandbytes.functional.create_dynamic_map(signed=True)`.
"""

from __future__ import annotations

import numpy as np

from dist_mp.codec.book import CodeBook, nearest_bounds


def dynamic_uniform() -> CodeBook:
    """Seven decades below 1; that of 10**-d has 2**(6 - d) values, the centres of even steps over [0.1, 1].

    With both signs and zero these are 255 values. The 256th is plus 1: only positive numbers reach the maximum. Other
    than in bitsandbytes the scale of a block is negative if its largest number is, so that this one is always exact.
    """
    values = [0.0]
    for decade in range(7):
        steps = 1 << (6 - decade)
        values += list((0.1 + 0.9 * (np.arange(steps) + 0.5) / steps) / 10.0**decade)
    magnitudes = np.sort(np.array(values)).astype(np.float32)
    bounds = nearest_bounds(np.append(magnitudes, np.float32(1.0)))
    return CodeBook(magnitudes, bounds, top=1.0)
