"""What a chaos run consists of: the stack behind its proxies, the witness, the hostile client."""
