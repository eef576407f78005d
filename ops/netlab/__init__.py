"""A small network on this machine: namespaces with shaped links, for benchmarks and tests of what hosts do together.

`plan` says what is wanted and which commands make it, `lab` makes it and takes it away again, `counters` reads what
went over each link, `leftovers` finds what a killed process could not take away, `tools` runs `ip` and `tc`.
"""
