"""The `pdbus` program: start a stack, ask it, and look into it."""

__all__: list[str] = []
