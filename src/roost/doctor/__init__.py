"""What a machine has and what is wrong with it: ``collect`` captures facts, ``checks`` judge them.

Nothing here loads torch into this process: what needs it runs in child processes with deadlines.
"""
