"""What became of a run, for machines (`summary.json`) and for people (`report.html`), from its topics alone."""
