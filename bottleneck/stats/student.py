"""Quantiles of Student's t.

In: a probability, degrees of freedom. Out: the quantile.
"""

from __future__ import annotations

import math
from statistics import NormalDist


def student_tail(chance: float, freedom: float) -> float:
    """Return the value that is exceeded with this chance (at most 0.5), for one degree of freedom and more.

    G. W. Hill, "Algorithm 396: Student's t-quantiles", Communications of the ACM, 1970.
    """
    n = max(1.0, freedom)
    p = 2.0 * min(max(chance, 1e-15), 0.5)
    if n < 1.5:
        return 1.0 / math.tan(p * math.pi / 2.0)
    if n < 2.5:
        return math.sqrt(2.0 / (p * (2.0 - p)) - 2.0)
    a = 1.0 / (n - 0.5)
    b = 48.0 / a**2
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * math.sqrt(a * math.pi / 2.0) * n
    y = (d * p) ** (2.0 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(p / 2.0)
        y = x * x
        if n < 5.0:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = math.expm1(a * y * y)
    else:
        y = (
            (1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0) + 0.5 / (n + 4.0)) * y - 1.0
        ) * (n + 1.0) / (n + 2.0) + 1.0 / y
    return math.sqrt(n * y)
