"""A data plane's address as the text that SGLang carries in a request's `bootstrap_host`.

SGLang passes that text through its processes untouched, and appends `:port`. Base64 in the
alphabet for URLs has no colon and no bracket, so the text survives both.
"""

from __future__ import annotations

import base64
import binascii

from proto.base import ProtocolError, decode, encode
from proto.kv import PeerAddress

__all__ = ["decode_address", "encode_address"]

_PREFIX = "ucx-"


def encode_address(address: PeerAddress) -> str:
    """Return the text that stands for an address."""
    return _PREFIX + base64.urlsafe_b64encode(encode(address)).decode()


def decode_address(text: str) -> PeerAddress:
    """Return the address in a text, with or without the `:port` that SGLang appends.

    Raises:
        ProtocolError: the text is not such an address.
    """
    body = text.partition(":")[0]
    if not body.startswith(_PREFIX):
        raise ProtocolError("not an address of a data plane")
    try:
        data = base64.b64decode(body.removeprefix(_PREFIX), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ProtocolError(f"not an address of a data plane: {error}") from error
    return decode(data, PeerAddress)
