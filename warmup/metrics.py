"""Live counters of the table that is installed in this process, for a server's own metrics.

`PrometheusCollector` is for the registry of prometheus_client, which importing this does not load.
"""

from warmup.serving.counters import PrometheusCollector

__all__ = ["PrometheusCollector"]
