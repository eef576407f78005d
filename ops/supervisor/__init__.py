"""`rlweave up`: starts every process of a run on this machine, restarts what dies, and ends the run in order."""
