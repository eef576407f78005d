"""`rlweave bench traffic`: how long a publish takes beside a checkpoint upload, on a network of shaped links.

`plan` says how much is measured, `store` is the host that checkpoints go to, `measure` carries out all sets, `report`
makes the table and the numbers, `bench` is what the command calls. Hosts are those of `ops.bench.weights`.
"""
