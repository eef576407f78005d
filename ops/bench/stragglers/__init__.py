"""What the last completions of a batch cost, and what handing them over saves: `rlweave bench stragglers`."""
