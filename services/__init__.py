"""The five services; README.md tells the life of a request."""
