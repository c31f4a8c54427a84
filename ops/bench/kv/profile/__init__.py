"""Where the time of one transfer goes, in both processes."""
