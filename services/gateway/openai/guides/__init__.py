"""What an answer must match: checked here, enforced by the engine while it draws."""

from services.gateway.openai.guides.choosing import guide_of, schema_guide
from services.gateway.openai.guides.schemas import check_schema

__all__ = ["check_schema", "guide_of", "schema_guide"]
