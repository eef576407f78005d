"""`rlweave bench elastic`: a load that doubles and halves, a death, and a slot that is lent, on the real supervisor."""
