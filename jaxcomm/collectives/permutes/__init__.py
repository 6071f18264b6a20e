"""Collectives as XLA's own collective-permutes, in the rounds of a schedule."""
