"""Everything that crosses a process boundary: messages, subjects, errors, identities.

Pure data: the standard library and msgspec only. Each module is named by who receives the message.
"""

PROTO_VERSION = 1
"""Version of the wire protocol; part of every compatibility card."""
