from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.sglang_plugins import decode_address, encode_address
from proto.base import ProtocolError
from proto.kv import PeerAddress

ADDRESSES = st.builds(
    PeerAddress,
    incarnation=st.text("0123456789abcdef", min_size=16, max_size=16),
    host=st.text(max_size=20),
    workers=st.dictionaries(st.sampled_from(["sysv", "tcp", "rc"]), st.binary(max_size=300)),
)


@given(ADDRESSES)
def test_an_address_survives_sglang(address: PeerAddress):
    """The text has no colon or bracket, and comes back with and without SGLang's port."""
    text = encode_address(address)
    assert not set(text) & set(":[]/ ")
    assert decode_address(text) == address
    assert decode_address(f"{text}:8998") == address


@pytest.mark.parametrize("text", ["", "10.0.0.1:8998", "ucx-", "ucx-!!", "ucx-AAAA", "None:1"])
def test_another_text_is_refused(text: str):
    """A host name or broken text is an error of the request, with a reason."""
    with pytest.raises(ProtocolError):
        decode_address(text)
