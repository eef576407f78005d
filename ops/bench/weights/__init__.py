"""`rlweave bench weights`: how fast a version of weights reaches many hosts, on a network of shaped links.

`plan` says how much is measured, `schemes` who fetches from whom, `faults` what goes wrong meanwhile. `node` is one
host, `words` what it is told and says, `crew` the driver's side of all nodes. `one_set` carries out one scheme,
`measure` all of them, `report` makes the table and the numbers, `bench` is what the command calls.
"""
