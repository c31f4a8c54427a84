"""Chaos: a stack of real processes under load, faults on all sides, and the promises checked."""
