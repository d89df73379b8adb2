"""`recollect export PATH OUT`: the rows of a table as a Parquet or Arrow file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recollect.cli.display import add_examples, add_json, add_path, opening, print_json
from recollect.errors import InvalidValue, QueryError

ENDINGS = (".parquet", ".arrow", ".feather")


def add(commands: Any) -> None:
    parser = commands.add_parser("export", help="write the rows of a table to a file")
    add_path(parser)
    parser.add_argument("out", metavar="OUT", help="a file that ends with .parquet or .arrow")
    parser.add_argument("--table", help="which table; needed where there are several")
    parser.add_argument("--where", help="only items that meet this, as \"task = 'math'\"")
    add_json(parser)
    add_examples(
        parser,
        "recollect export runs/checkpoints replay.parquet",
        "recollect export runs/checkpoints math.parquet --where \"task = 'math'\"",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from recollect.durability.progress_bar import bar
    from recollect.durability.snapshot.reader import open_snapshot

    out = Path(given.out)
    if out.suffix not in ENDINGS:
        raise InvalidValue(f"OUT: expected a name that ends with {' or '.join(ENDINGS)}, got {out}")
    if out.is_dir():
        raise InvalidValue(f"OUT: {out} is a folder; name a file")
    if not out.parent.is_dir():
        raise InvalidValue(f"OUT: the folder {out.parent} does not exist; make it first")
    with opening("PATH", given.path):
        snapshot = open_snapshot(given.path, step=given.step)
    table = _table(snapshot.tables, given.table)
    snapshot.check_files()
    count = 0
    batches = _batches(snapshot, table, given.where)
    half = out.with_name(f".{out.name}.half")
    try:
        nbytes = snapshot.entry(table)["nbytes"]
        with bar("export", nbytes, False if given.json else None) as told:
            writer: Any = None
            for batch in batches:
                if writer is None:
                    writer = _writer(half, out.suffix, batch.schema)
                writer.write_batch(batch)
                count += batch.num_rows
                told(batch.nbytes)
            if writer is None:
                meets = "is empty" if given.where is None else "has no item that meets --where"
                raise InvalidValue(
                    f"{snapshot.path}: table {table!r} {meets}, so nothing was written"
                )
            writer.close()
        half.replace(out)
    finally:
        half.unlink(missing_ok=True)
    if given.json:
        print_json({"path": str(out), "table": table, "rows": count})
    else:
        print(f"{out}: {count} rows")
    return 0


def _table(tables: list[str], name: str | None) -> str:
    if name is None:
        if len(tables) != 1:
            raise InvalidValue(f"--table: there are {', '.join(tables)}; name one")
        return tables[0]
    if name not in tables:
        raise InvalidValue(f"--table: there is no {name!r}; there are {', '.join(tables)}")
    return name


def _batches(snapshot: Any, table: str, where: str | None) -> Iterator[Any]:
    """The rows in order of arrival, with the fields of their items and the shared cells."""
    from recollect.durability.snapshot.contents import fields_of, matching
    from recollect.rules.query import parse

    entry, saved = snapshot.entry(table), snapshot.saved(table)
    fields = fields_of(saved, entry)
    try:
        places = matching(saved, entry, None if where is None else parse(where))
    except QueryError as error:
        raise InvalidValue(f"--where: {error}") from error
    places = places[np.argsort(fields["seq"][places], kind="stable")]
    counts = fields.get("rows", np.ones(fields["key"].size, np.int64))
    done = 0
    for batch in snapshot.rows(table, places):
        arrow = batch.to_arrow()
        ends = np.cumsum(counts[places[done:]])
        items = int(np.searchsorted(ends, arrow.rows.num_rows, side="right"))
        here = places[done : done + items]
        of_row = np.repeat(np.arange(items), counts[here])
        columns = dict(zip(arrow.rows.schema.names, arrow.rows.columns, strict=True))
        if arrow.shared is not None:
            for name, column in zip(arrow.shared.schema.names, arrow.shared.columns, strict=True):
                columns[f"shared.{name}"] = column.take(pa.array(of_row))
        for name, values in fields.items():
            if name not in ("rows", "nbytes", "shared_nbytes", "revision"):
                columns[f"item.{name}"] = _arrow(values, here[of_row], entry["fields"].get(name))
        yield pa.record_batch(list(columns.values()), list(columns))
        done += items


def _arrow(values: Any, places: Any, kind: str | None) -> Any:
    types = {"str": pa.large_utf8(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    if values.dtype == object:
        return pa.array(values[places].tolist(), types[kind or "str"])
    return pa.array(values[places])


def _writer(path: Path, ending: str, schema: Any) -> Any:
    if ending == ".parquet":
        import pyarrow.parquet as pq

        return pq.ParquetWriter(path, schema, compression="zstd")
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    return pa.ipc.new_file(str(path), schema, options=options)
