"""The rollout producers: from numbered groups to samples, with an inference engine."""
