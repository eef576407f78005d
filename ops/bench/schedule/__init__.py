"""`rlweave bench schedule`: scheduling policies on fixed workloads.

`workload` says what happens and how long it takes; `plant` is a run in the simulator, which the policies hear of
through `hearsay`; `real` is a run of real stages, whose learner and rollout producers live in the `yard`, where
`world`, `engine`, `trainer` and `foreman` take the workload's time; `link`, `pool` and `figures` serve both.
"""
