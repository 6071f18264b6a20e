"""Gradients of a loss whose batch is split over a mesh axis, in steps that `jax.jit` partitions."""
