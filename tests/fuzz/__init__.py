"""Requests that a machine makes up from our own description of the API."""
