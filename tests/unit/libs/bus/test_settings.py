"""Limits of the bus settings."""

from __future__ import annotations

import msgspec
import pytest

from libs.bus import BusSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"connect_timeout_s": 0},
        {"ping_interval_s": -1},
        {"max_outstanding_pings": 0},
        {"reconnect_wait_s": 0},
        {"event_buffer": 0},
        {"startup_deadline_s": 0},
    ],
)
def test_values_that_would_disable_a_guard_are_refused(wrong):
    """No setting can switch off a deadline or a bound."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, BusSettings)


def test_a_lost_server_is_noticed_in_time_by_default():
    """Pings find a hanging server within the 10 s that a stream survives; waits stay below 2 s."""
    settings = BusSettings()
    assert settings.ping_interval_s * (settings.max_outstanding_pings + 1) < 10
    assert settings.reconnect_wait_max_s * 1.0 + settings.connect_timeout_s <= 2.0
