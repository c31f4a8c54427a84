"""The short way for the paths that carry streams."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Switch"]


class Switch:
    """Middleware that hands some exchanges to their endpoint at once.

    An application of starlette wraps the `send` of an exchange, and so adds to the cost of each
    write; what its routing does is not needed for a path that is known as a whole.

    Args:
        direct: endpoints by method and path.
    """

    def __init__(self, app: ASGIApp, *, direct: Mapping[tuple[str, str], ASGIApp]) -> None:
        self._app = app
        self._direct = direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one exchange."""
        app = self._app
        if scope["type"] == "http":
            app = self._direct.get((scope["method"], scope["path"]), app)
        await app(scope, receive, send)
