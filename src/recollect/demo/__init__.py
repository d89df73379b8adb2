"""`recollect demo`: a run worth looking at, with nothing to set up.

A tiny policy in NumPy learns two tasks from rewards alone while producers work beside it, a
journal keeps what they made, and half-way the process that trains is killed. `run.py` is the
process that a person looks at, `rollouts.py` and `steps.py` are what it starts and kills,
`watching.py` is the terminal, `report.py` the page that is left.
"""
