"""`rlweave dashboard`: a run in the browser, live or from its topics.

`server` answers requests, `access` says whose, `runs` keeps the runs that somebody looks at, `feed` turns a run's
picture into server-sent events, `ledger_index` knows every outcome by where it stands, `finding` and `group_view` make
one group out of its records, `pieces` turns token ids into text. `assets/` is what the browser gets: plain modules, no
build step, nothing from another host.
"""
