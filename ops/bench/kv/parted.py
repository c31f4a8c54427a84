"""The measurement of `extras.measure_parted`, started within the first namespace."""

from __future__ import annotations

from ops.bench.kv.extras import parted

if __name__ == "__main__":
    parted()
