"""QSGD (Alistarh et al. 2017): stochastic rounding in buckets of 512, scaled by their largest entry.

A number is sign and one of s = 2^(bits - 1) - 1 steps of the norm, so 0 stays 0. The norm is
l-infinity, as in the authors' experiments: with l2 nearly all codes would be 0. Codes have a fixed
width instead of the paper's Elias code, so that a payload's size is known before it is made.
"""

from fedbudget.codecs.uniform import uniform

_BUCKET = 512

qsgd8 = uniform(8, 255, _BUCKET)
qsgd4 = uniform(4, 15, _BUCKET)
qsgd2 = uniform(2, 3, _BUCKET)
