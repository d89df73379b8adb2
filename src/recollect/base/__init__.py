"""What every part may use, and what knows nothing of tables: small values and checks.

Checks of arguments, clocks, leases and requests as books of plain numbers, optional packages,
numbers and pieces of HTML as people read them, and the face for threads. Apart from
`recollect.errors` nothing of Recollect is imported here.
"""
