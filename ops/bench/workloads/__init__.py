"""The workloads of `rlweave bench schedule`: fixed, so that figures of different days can be compared."""
