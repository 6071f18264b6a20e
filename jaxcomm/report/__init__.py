"""Tables, timelines and plots for people, made from plans, schedules and profiles.

The cli, the notebooks and the object that `jaxcomm.stats()` returns use this package. It imports schedules, plan,
profile and simulate, never JAX. Plots import Matplotlib when they are drawn.
"""
