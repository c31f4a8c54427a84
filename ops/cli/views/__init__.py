"""What people see: progress, the fleet, the stages of a request, logs."""

__all__: list[str] = []
