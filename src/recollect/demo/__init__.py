"""`recollect demo`: a run worth looking at, with nothing to set up.

A tiny policy in NumPy learns two tasks from rewards alone while producers work beside it, a
journal keeps what they made, and half-way the process that trains is killed. `run.py` is the
process that a person looks at, `language_model.py` and `grid_world.py` are what it starts and
kills, `terminal.py` shows it, and `page.py` is what is left.
"""
