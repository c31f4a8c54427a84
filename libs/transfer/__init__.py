"""Moving KV bytes between engine processes over UCX. The only room that knows ucxx."""
