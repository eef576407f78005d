"""The first files of plug-ins of one's own: `rlweave new`."""
