"""A running job as `jaxcomm top` shows it: `numbers` computes the values, `screen` lays them out."""
