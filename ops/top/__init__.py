"""`rlweave top`: a run in the terminal while it goes on."""
