"""Running pdbus: the command line, benchmarks and deployment files."""

__all__: list[str] = []
