"""`recollect sql init URL`: make the tables of Recollect in a database.

Tables make what they need by themselves. This shows whether an address works and whether its user
may create tables, before a run begins.
"""

from __future__ import annotations

import argparse
from typing import Any

from recollect.cli.display import add_examples, add_json, print_json


def add(commands: Any) -> None:
    sql = commands.add_parser("sql", help="databases that tables are stored in")
    verbs = sql.add_subparsers(metavar="VERB", required=True)
    init = verbs.add_parser("init", help="make the tables of Recollect in a database")
    init.add_argument("url", metavar="URL", help="sqlite:///replay.db, postgresql://user@host/name")
    add_json(init)
    add_examples(
        init,
        "recollect sql init sqlite:///replay.db",
        "recollect sql init postgresql://trainer@db.example/experience",
    )
    add_examples(sql, "recollect sql init sqlite:///replay.db")
    init.set_defaults(run=run_init)


def run_init(given: argparse.Namespace) -> int:
    from recollect.storage.sql.database import Database
    from recollect.storage.sql.tables import VERSION, prepare

    database = Database(given.url, 0.0)
    try:
        fresh = database.begin(lambda c: prepare(c, database.dialect, database.where))
        database.commit()
    finally:
        database.close()
    if given.json:
        print_json({"url": database.where, "version": VERSION, "made": fresh})
        return 0
    done = "were made" if fresh else "were there"
    print(f"{database.where}: the tables of version {VERSION} {done}")
    return 0
