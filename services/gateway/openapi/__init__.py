"""The description of the API as an OpenAPI document, made from the types that carry it."""

from services.gateway.openapi.document import openapi_document
from services.gateway.openapi.endpoint import OpenApiEndpoint

__all__ = ["OpenApiEndpoint", "openapi_document"]
