"""`rlweave bench rewards`: broken scorers beside good ones, and scoring the past beside training."""
