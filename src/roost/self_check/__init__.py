"""``roost check``: the laws of a run, tried with its own model, engine and method on this machine.

``checks`` lists them.
"""
