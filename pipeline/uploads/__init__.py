"""Checkpoints beyond the learner's disk: a directory, an object store, whatever fsspec has a file system for.

    <url>/<run>/<lineage>.<step>/parts/<digest>   pieces of the checkpoint's files, named by their blake3 digest
    <url>/<run>/<lineage>.<step>/upload.json      last: which pieces make which file

`layout` has these names and the marker's content, `target` is the one module that knows fsspec, `sending` uploads one
checkpoint, `uploader` has the thread that does it, `queue` chooses which one, `held` keeps it from being pruned
meanwhile, `cadence` notices that uploads cannot keep up, `pruning` removes old ones, `restoring` brings one back.
"""
