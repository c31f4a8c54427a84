"""What the gate runs beside the stock tools: size guard, golden schemas, generated tables."""
