"""Programs of ranks: a schedule as operations on shared memory or as messages, and the proofs of both.

May be imported by plan, planner, simulate and what runs the collectives; imports schedules.
"""
