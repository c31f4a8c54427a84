"""The host's argument."""

import msgspec
import pytest

from libs.engine.options import HostOptions
from libs.engine.script.settings import Action, Fault, Phase, Profile, ScriptOptions
from tests.support.engines import host_options


def test_options_survive_the_command_line():
    """Options read from their own JSON are equal, with profile, faults and engine arguments."""
    script = ScriptOptions(
        profile=Profile(prefill_token_s=0.001),
        faults=(Fault(when=Phase.DECODE, action=Action.STALL, nth=2, seconds=1.5),),
    )
    options = host_options(script=script, engine_args={"dtype": "float32", "tp_size": 1})
    assert HostOptions.from_json(options.to_json()) == options


@pytest.mark.parametrize(
    "text", ["{}", "not json", '{"kind":"scripted"}', '{"kind":"other","role":"prefill"}']
)
def test_bad_options_are_refused(text):
    """Missing, unknown or broken values never become options."""
    with pytest.raises(msgspec.DecodeError):
        HostOptions.from_json(text)


def test_unknown_fields_are_refused():
    """A misspelt field is an error, not silence."""
    text = host_options().to_json().replace('"slots"', '"slotz"')
    with pytest.raises(msgspec.ValidationError, match="slotz"):
        HostOptions.from_json(text)
