"""Builds on the devices of a Ray cluster: the queue of problems, and an actor for each device.

`build_on_cluster` is the verb, `RayRunner` the `Runner` of a worker on another host. Ray is an
extra, and `warmup.tuning.cluster.connection` alone imports it.
"""
