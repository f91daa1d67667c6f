"""A REST service to serve through the gateway: Datasette (https://datasette.io) with a small
library of books.

    python library.py PORT

The service ends when its standard input ends, so it never outlives the process that started it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
import threading
from pathlib import Path

from datasette.cli import cli

BOOKS = [
    ("The Origin of Species", "Charles Darwin", 1859, "science"),
    ("The Voyage of the Beagle", "Charles Darwin", 1839, "travel"),
    ("Frankenstein", "Mary Shelley", 1818, "fiction"),
    ("The Last Man", "Mary Shelley", 1826, "fiction"),
    ("Pride and Prejudice", "Jane Austen", 1813, "fiction"),
    ("Emma", "Jane Austen", 1815, "fiction"),
    ("Middlemarch", "George Eliot", 1871, "fiction"),
    ("Walden", "Henry David Thoreau", 1854, "essays"),
    ("The Time Machine", "H. G. Wells", 1895, "fiction"),
    ("The War of the Worlds", "H. G. Wells", 1898, "fiction"),
    ("Relativity", "Albert Einstein", 1916, "science"),
    ("On Liberty", "John Stuart Mill", 1859, "essays"),
]


def make(path: Path) -> None:
    """Write the library: tables `authors` and `books`, and the view `catalogue` that joins them."""
    with sqlite3.connect(path) as library:
        library.executescript(
            """
            create table authors (id integer primary key, name text unique not null);
            create table books (
                id integer primary key, title text not null, year integer not null, subject text not null,
                author_id integer not null references authors (id)
            );
            create view catalogue as
                select books.id, title, authors.name as author, year, subject
                from books join authors on authors.id = author_id order by year;
            """
        )
        for title, author, year, subject in BOOKS:
            library.execute("insert or ignore into authors (name) values (?)", (author,))
            (author_id,) = library.execute(
                "select id from authors where name = ?", (author,)
            ).fetchone()
            library.execute(
                "insert into books (title, year, subject, author_id) values (?, ?, ?, ?)",
                (title, year, subject, author_id),
            )


def _end_with_standard_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Serve the library until standard input ends."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "library.db")
        make(path)
        cli(["serve", str(path), "--host", "127.0.0.1", "--port", sys.argv[1]])


if __name__ == "__main__":
    main()
