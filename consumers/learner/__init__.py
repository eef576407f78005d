"""The learner: join, age, cut, train, publish, remember."""
