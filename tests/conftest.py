"""Eight CPU devices for every test; must come before the first import of JAX."""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ.setdefault("PJRT_NPROC", "32")  # XLA's own threads: fewer can hang programs of eight devices on two cores
os.environ.setdefault("JAX_PLATFORMS", "cpu")
