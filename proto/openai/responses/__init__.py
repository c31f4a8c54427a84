"""`POST /v1/responses`: what is sent, what comes back, and the events of a stream."""
