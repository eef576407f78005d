"""The evaluator: published versions on evaluation sets, beside training."""
