"""``scripts/gpu-check``: whether all of Roost is right on this machine's GPU, and how fast it is.

``registry.py`` lists the checks, ``checks/`` holds them, ``runner.py`` runs each in a process of
its own with a deadline. Nothing is imported here: what runs the checks stays light.
"""
