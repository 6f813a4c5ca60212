"""The rows that DuckDB finds in the tables of a folder (Parquet) or in a file (CSV, JSON lines)."""

import json
import os
import sys

import duckdb

path = sys.argv[1]


def table(name):
    if os.path.isdir(path):
        return f"read_parquet('{path}/{name}.parquet')"
    if path.endswith(".csv"):
        # Everything is text: what is a number is for who knows the columns.
        return f"read_csv('{path}', all_varchar = true)"
    return f"read_ndjson('{path}', sample_size = -1)"


def rows(query):
    cursor = duckdb.sql(query)
    rows = []
    for row in cursor.fetchall():
        fields = dict(zip(cursor.columns, row))
        data = fields.get("data")
        if isinstance(data, bytes):
            try:
                fields["data"] = data.decode()
            except UnicodeDecodeError:
                fields["data_hex"] = fields.pop("data").hex()
        rows.append({name: value for name, value in fields.items() if value is not None})
    return rows


events = table("events")
calls = f"select function, count(*) calls from {events} where event = 'enter' group by 1 order by 1"
found = {"events": rows(f"from {events}"), "calls": rows(calls)}
if os.path.isdir(path):
    found["functions"] = rows(f"from {table('functions')}")
if "fields" in duckdb.sql(f"from {events}").columns and os.path.isdir(path):
    price = "(fields->>'price')::double"
    query = f"select {price} price from {events} where {price} is not null order by time_ns"
    found["prices"] = [price for (price,) in duckdb.sql(query).fetchall()]
print(json.dumps(found))
