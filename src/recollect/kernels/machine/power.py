"""x ** a for positive numbers, in arithmetic that a compiler turns into vector instructions.

The C library's `pow` is exact to the last bit and takes one number at a time. Weights need
neither, and a batch of them is most of what sampling computes. The result is exact to about
1e-14, and the same for a number alone and in a batch.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.machine.compile import inner
from recollect.kernels.machine.vectors import bits_of, float_of

SMALLEST = 1e-300
ROOT = 1.4142135623730951
FRACTION = np.int64(0x000FFFFFFFFFFFFF)
ONE = np.int64(0x3FF0000000000000)
TO_BASE_2 = 2.8853900817779268  # 2 / ln 2
LN_2 = 0.6931471805599453


@inner("float64(float64)")
def log_2(x):
    """The exponent, and the series of the logarithm of what is left between 0.7 and 1.4."""
    bits = np.int64(bits_of(max(x, SMALLEST)))
    exponent = np.float64((bits >> 52) - 1023)
    rest = float_of((bits & FRACTION) | ONE)
    high = rest > ROOT
    rest = 0.5 * rest if high else rest
    exponent = exponent + 1.0 if high else exponent
    s = (rest - 1.0) / (rest + 1.0)
    q = s * s
    series = 1.0 / 19.0
    series = series * q + 1.0 / 17.0
    series = series * q + 1.0 / 15.0
    series = series * q + 1.0 / 13.0
    series = series * q + 1.0 / 11.0
    series = series * q + 1.0 / 9.0
    series = series * q + 1.0 / 7.0
    series = series * q + 1.0 / 5.0
    series = series * q + 1.0 / 3.0
    series = series * q + 1.0
    return exponent + s * series * TO_BASE_2


@inner("float64(float64)")
def exp_2(y):
    """A power of two for the whole part, and the series of the exponential for the rest."""
    y = min(max(y, -1020.0), 1020.0)
    whole = np.floor(y + 0.5)
    f = (y - whole) * LN_2
    series = 1.0 / 6227020800.0
    series = series * f + 1.0 / 479001600.0
    series = series * f + 1.0 / 39916800.0
    series = series * f + 1.0 / 3628800.0
    series = series * f + 1.0 / 362880.0
    series = series * f + 1.0 / 40320.0
    series = series * f + 1.0 / 5040.0
    series = series * f + 1.0 / 720.0
    series = series * f + 1.0 / 120.0
    series = series * f + 1.0 / 24.0
    series = series * f + 1.0 / 6.0
    series = series * f + 0.5
    series = series * f + 1.0
    series = series * f + 1.0
    return series * float_of((np.int64(whole) + 1023) << 52)


@inner("float64(float64, float64)")
def power(x, exponent):
    return exp_2(exponent * log_2(x))
