"""Starts the gateway that TensorZero's Python package carries, and says where it listens."""

import sys
import threading

import tensorzero

gateway = tensorzero._start_http_gateway(
    config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
)
print(gateway.base_url, flush=True)
threading.Event().wait()
