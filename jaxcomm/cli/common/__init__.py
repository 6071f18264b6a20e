"""The common parts of commands: argument types, options, output, progress, host devices, and jobs."""
