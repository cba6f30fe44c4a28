"""One random stream for each sample, so that a sample never depends on its neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from roost.engines.protocol import SampleKey

_CHUNK = 64
_WORD = (1 << 64) - 1


def uniforms(key: SampleKey) -> Iterator[float]:
    """The endless uniforms in [0, 1) that belong to a key, the same each time it is asked for.

    Philox is a counter-based generator (Salmon et al., "Parallel random numbers: as easy as
    1, 2, 3", SC 2011): seed and step are its key; prompt and index are the high words of its
    counter, the draws the low ones. Streams of different keys therefore cannot overlap.
    """
    counter = np.array([0, 0, key.index & _WORD, key.prompt_id & _WORD], dtype=np.uint64)
    words = np.array([key.seed & _WORD, key.step & _WORD], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(counter=counter, key=words))
    while True:
        yield from generator.random(_CHUNK).tolist()
