"""A lab of real hosts on one machine: systemd as PID 1, sshd, an address, a disk, faults on demand.

A host is a set of Linux namespaces. Its root is an overlay: this machine's `/` (read-only) below a
shared layer with sshd, users and configuration, below a disk of its own with a size limit. All
hosts hang on one supervisor process; the network they form exists in its namespace alone. When the
supervisor ends, by whatever cause, so do all hosts, mounts and interfaces.

`Fleet` is what tests use; `python -m tests.fleet.lab` is the same for a person.
"""
