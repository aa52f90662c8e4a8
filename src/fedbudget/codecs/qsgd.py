"""QSGD (Alistarh et al. 2017): stochastic rounding in buckets, scaled by their largest entry.

A number is sign and one of s = 2^(bits - 1) - 1 steps of the norm, so 0 stays 0. The norm is
l-infinity, as in the authors' experiments: with l2 nearly all codes would be 0. Codes have a fixed
width instead of the paper's Elias code, so that a payload's size is known before it is made.

The fewer the bits, the longer the bucket: 32 bits of scale are 0.4 % of the codes of any of them.
"""

from fedbudget.codecs.uniform import uniform

_BUCKET_BITS = 8192  # of codes

qsgd8 = uniform(8, 255, _BUCKET_BITS // 8)
qsgd4 = uniform(4, 15, _BUCKET_BITS // 4)
qsgd2 = uniform(2, 3, _BUCKET_BITS // 2)
