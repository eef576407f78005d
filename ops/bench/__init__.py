"""Benchmarks: rlweave against peers and limits, on the machine at hand (`rlweave bench`)."""
