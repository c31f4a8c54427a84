"""Plans where requests run and admits them; never on the token or prompt path."""

from services.router.router import RouterService

__all__ = ["RouterService"]
