"""What the machine can do with the very pieces of a cell, with nothing around it."""
