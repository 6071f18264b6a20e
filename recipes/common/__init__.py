"""Shared code of the recipes. In reading order:

  devices          the workers: all GPUs, or CPU devices, of all processes of the job; before JAX starts
  data             real data with fixed splits
  task             what is learnt: data, model, loss, metric, optimizer
  synchronisation  how the workers come to agree, by name
  digits           the task of recipes that are about something else than the task
  training         the jitted step over a mesh of workers
  records          metrics to the screen, a CSV file and TensorBoard
  checkpoints      a run's state on disk, by Orbax
  tolerance        a task as `jaxcomm profile drop-bound` asks for it
  recipe           the flags of every recipe, and its loop

A recipe is a script beside this folder that makes a task.
"""
