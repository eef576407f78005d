"""`rlweave trace`: the life of a prompt, a sample or a policy version, hop by hop."""
