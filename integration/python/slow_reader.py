#!/usr/bin/env python3
"""A reader of xrayd's live events that reads on request only.

    slow_reader.py --socket PATH --pid PID

The reader subscribes and prints "subscribed". The line "read N" on standard input makes it read
until the events that it has seen and the reported losses are N. Its last line is JSON on standard
output:

    {"events": 1000, "reader_lost": 5000, "target_lost": 0}

The process must be attached. Needs what client.py needs, which it takes the service from.
"""

import argparse
import json
import sys

import grpc

from client import CHANNEL_OPTIONS, Xrayd


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", required=True, help="the daemon's unix socket")
    parser.add_argument("--pid", required=True, type=int)
    options = parser.parse_args()

    with grpc.insecure_channel(f"unix:{options.socket}", options=CHANNEL_OPTIONS) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        stream = Xrayd(channel).StreamEvents(pid=options.pid)
        # The subscription exists when the headers are here.
        stream.initial_metadata()
        print("subscribed", flush=True)
        wanted = int(sys.stdin.readline().removeprefix("read "))
        counts = {"events": 0, "reader_lost": 0, "target_lost": 0}
        for batch in stream:
            counts["events"] += len(batch.events)
            counts["reader_lost"] += batch.reader_lost
            counts["target_lost"] += batch.target_lost
            if sum(counts.values()) >= wanted:
                break
        stream.cancel()
        print(json.dumps(counts))


if __name__ == "__main__":
    main()
