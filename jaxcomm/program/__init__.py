"""Programs of ranks: a schedule as operations on shared memory, as messages or as permutes, and the proofs of all.

May be imported by plan, planner, simulate and what runs the collectives; imports schedules.
"""
