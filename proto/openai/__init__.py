"""Public HTTP types: what OpenAI-style clients send and receive.

Requests refuse unknown fields; answers carry exactly the keys that clients index.
"""
