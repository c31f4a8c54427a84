"""What a chaos run is judged by: what clients saw, the ledger, the events, the engines."""
