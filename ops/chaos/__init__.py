"""`rlweave chaos`: a real run, faults at random moments, and the proof afterwards that nothing was lost or done twice.

`plan` draws the faults from a seed, `faults` has one small class for each kind, `run` puts them to a run of its own and
`judge` says what came of it.
"""
