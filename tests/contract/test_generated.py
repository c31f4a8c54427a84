"""Generated files and the size of rooms."""

from __future__ import annotations

from pathlib import Path

from libs.config import fields_of
from ops.check.environment import service_settings
from ops.check.golden import stale
from ops.check.size import violations
from ops.check.tables import table_files

ROOT = Path(__file__).resolve().parents[2]


def test_tables_and_examples_are_up_to_date():
    """READMEs and `.env.example` say what the code says; `make generate` writes them again."""
    assert stale(table_files()) == []


def test_rooms_stay_small():
    """No module, function or folder is over its limit."""
    assert list(violations(ROOT)) == []


def test_every_setting_has_a_meaning():
    """Each setting of each service has a docstring, so help and example are complete."""
    missing = [
        f"{service}.{field.name}"
        for service, kind in service_settings()
        for field in fields_of(kind)
        if not field.text
    ]
    assert missing == []
