"""Rooms that services are built from; see README.md for one line a room."""
