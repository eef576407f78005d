"""Each algorithm against its float64 reference, and on the demo task."""
