"""``roost bench``: Roost and rivals side by side on one workload, each in a process of its own.

``job.py`` says what is measured, ``rivals.py`` who takes part and with which settings,
``subjects/`` how each does its step, ``race.py`` in which order they take turns. Nothing is
imported here: the command line stays light.
"""
