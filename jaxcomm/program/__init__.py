"""Programs of ranks: a schedule as operations on shared memory, as messages or as permutes, with their proofs.

This package imports schedules. Plan, planner, simulate and the packages that run collectives may import this package.
"""
