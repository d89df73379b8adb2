"""Rules and queries: frozen descriptions of what comes next, what may go ahead, what is meant.

A selector says which item comes next and a query which items are meant; a storage executes both.
A limiter decides by counts alone; the table waits. Rules know errors and NumPy, and nothing of
where items live.
"""
