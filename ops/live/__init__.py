"""What a run looks like: one fold of its topics that every view stands on."""
