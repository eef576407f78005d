"""`rlweave bench schedule`: scheduling policies on fixed workloads.

`workload` says what happens and how long it takes; `plant` is a run in the simulator, which the policies hear of
through `hearsay`; `real` is a run of real stages, whose rollout producers live in the `yard` and whose learner is the
`pupil`: there `world`, `engine`, `trainer` and `foreman` take the workload's time, over a `board`. `link`, `pool` and
`figures` serve both.
"""
