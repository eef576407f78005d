"""What reads: rewards, the learner, the scheduler, evaluators."""
