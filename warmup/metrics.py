"""Live counters of the table that is installed in this process, for a server's own metrics.

`PrometheusCollector` is for the registry of prometheus_client, `observe` for a meter of
OpenTelemetry. Importing this package imports neither.
"""

from warmup.serving.counters.opentelemetry_meter import observe
from warmup.serving.counters.prometheus_collector import PrometheusCollector

__all__ = ["PrometheusCollector", "observe"]
