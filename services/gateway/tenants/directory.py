"""All keys and tenants of a gateway, read again whenever their file changes."""

from __future__ import annotations

import asyncio
import hmac
from pathlib import Path

from libs.clock.api import Clock
from libs.telemetry import count, get_logger, names
from proto.errors import ErrorCode, PdbusError
from proto.keyfile import KeyEntry, KeyFile, KeyFileError, key_hash, key_id, parse
from services.gateway.tenants.tenant import Tenant

__all__ = ["Directory"]

_EVERY_S = 1.0
_SCHEME = "bearer "
_MOST_KEY = 512
"""Characters of a key that are worth hashing."""
_NOBODY = "0" * 64


class Directory:
    """Knows whose key it is.

    Args:
        path: the key file.
        share: how many processes enforce an equal part of each limit.

    Raises:
        KeyFileError: the file cannot be used.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, *, clock: Clock, share: int = 1) -> None:
        self._path = path
        self._clock = clock
        self._share = share
        self._tenants: dict[str, Tenant] = {}
        self._keys: dict[str, KeyEntry] = {}
        self._secret = _NOBODY
        self._data = path.read_bytes()
        self._use(parse(self._data, path.name))

    def visitor(self, authorization: str | None) -> Tenant:
        """Return the tenant of an `authorization` header.

        Raises:
            PdbusError: invalid_api_key.
        """
        if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
            text = "You did not provide an API key: send 'authorization: Bearer KEY'."
            raise PdbusError(ErrorCode.INVALID_API_KEY, text)
        key = authorization[len(_SCHEME) :].strip()[:_MOST_KEY]
        entry = self._keys.get(key_id(key))
        # The same work for every key, and a comparison that takes as long for every hash.
        known = entry.hash if entry is not None else _NOBODY
        right = hmac.compare_digest(key_hash(self._secret, key), known)
        if entry is None or not right:
            raise PdbusError(ErrorCode.INVALID_API_KEY)
        return self._tenants[entry.tenant]

    async def watch(self) -> None:
        """Take over changes of the file, for ever; a file that cannot be used changes nothing."""
        while True:
            await self._clock.sleep(_EVERY_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the file, and take it over if it has changed."""
        try:
            data = await asyncio.to_thread(self._path.read_bytes)
        except OSError as error:
            self._keep(b"", str(error))
            return
        if data == self._data:
            return
        try:
            self._use(parse(data, self._path.name))
        except KeyFileError as error:
            self._keep(data, str(error))
            return
        self._data = data
        count(names.GATEWAY_KEY_RELOADS, outcome="taken")
        get_logger().info("keys read again", keys=len(self._keys), tenants=len(self._tenants))

    def _keep(self, data: bytes, reason: str) -> None:
        """Go on with what was known; say so once a change."""
        if data != self._data:
            self._data = data
            count(names.GATEWAY_KEY_RELOADS, outcome="refused")
            get_logger().error("key file refused, the former keys stay", reason=reason)

    def _use(self, file: KeyFile) -> None:
        if file.secret != self._secret:
            # Salts come from it: a tenant with another secret is another one for the caches.
            self._tenants = {}
        self._secret = file.secret
        tenants: dict[str, Tenant] = {}
        for name, rules in file.tenants.items():
            tenant = self._tenants.get(name)
            if tenant is None:
                tenant = Tenant(
                    name, rules, secret=file.secret, clock=self._clock, share=self._share
                )
            else:
                tenant.apply(rules)
            tenants[name] = tenant
        self._tenants = tenants
        self._keys = {entry.id: entry for entry in file.keys}
