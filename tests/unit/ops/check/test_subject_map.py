"""The generated subject map."""

from __future__ import annotations

from ops.check.subject_map import subject_rows
from proto import subjects


def test_every_subject_has_a_row():
    """Nothing that `subjects.py` builds is missing from the map."""
    rows = {name.removesuffix("()") for name, _, _ in subject_rows()}
    assert rows == set(subjects.__all__) - {"PREFIX", "template"}


def test_ids_are_shown_as_placeholders():
    """A function's subject shows what stands in which place."""
    rows = {name: subject for name, subject, _ in subject_rows()}
    assert rows["worker()"] == "pdbus.v1.prefill.{instance}.{incarnation}.{verb}"
    assert rows["cancel()"] == "pdbus.v1.cancel.{tenant}.{rid}"
