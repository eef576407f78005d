"""What may leave a host, in which order and when: traffic classes, carried out where the bytes are sent.

`classes` names them, `permit` says what is allowed, `gate` decides with token buckets (`bucket`) what may go now,
`flow` measures what the weights take, `phase_file` tells the sender which phase the learner of this host is in,
`sender` is all of it for one process that sends, `orders` reads the scheduler's word, which replaces the settings'.
"""
