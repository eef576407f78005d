"""`rlweave bench observe`: planted faults, and whether the verdict names them."""
