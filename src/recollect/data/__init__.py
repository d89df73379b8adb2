"""What travels and what is stored: columns, batches, schemas, and their encodings.

From the lowest: dtypes, cells, `Ragged`, the data of one column, `Columns` by name, `Info` of the
items, `Batch`, and beside it `Schema`, which checks what is inserted. Arrow, pandas and
torch are other forms of the same columns. Data knows the base and what a kernel expects of an
array; it knows no rule, no storage and no table.
"""
