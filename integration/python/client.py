#!/usr/bin/env python3
"""A client of xrayd without generated code: gRPC reflection gives it the contract.

    client.py --socket PATH --pid PID (--function NAME | --all) --seconds S --out FILE

The client attaches to the process, switches the functions on, and reads live events for S seconds
from the first on. Then it fetches the retained trace to FILE, switches the functions off and
detaches. Its last line is JSON on standard output:

    {"pid": 1, "version": "0.1.0", "services": […], "matched": 3, "events_seen": 1000,
     "reader_lost": 0, "functions": ["work"], "trace_bytes": 4096, "sleds_off": 6,
     "text_bytes_different": 0, "detached": true}

Exit code 0 if all of that worked; 4 if the daemon refused, with its reason on standard error.

It needs grpcio and protobuf: Debian 12 has 1.51 and 3.21, and 1.85 and 7.36 were tried, too. It
needs no protoc.
"""

import argparse
import json
import sys
import threading

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool

try:  # protobuf >= 4.22
    from google.protobuf.message_factory import GetMessageClass as message_class
except ImportError:
    from google.protobuf.message_factory import MessageFactory

    _factory = MessageFactory(descriptor_pool.Default())
    message_class = _factory.GetPrototype

SERVICE = "xrayd.v1.Xrayd"
REASON = "xrayd-reason"
# Without it, grpcio 1.85 makes an authority of the socket's path. The daemon's HTTP/2 library
# refuses that, and the call fails with "Stream removed".
CHANNEL_OPTIONS = (("grpc.default_authority", "localhost"),)
# How long the first live events are waited for, in seconds.
PATIENCE = 30.0


def reflection_messages():
    """Request and response of grpc.reflection.v1, as far as they are needed here."""
    file = descriptor_pb2.FileDescriptorProto(
        name="client/reflection.proto", package="client.reflection", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields):
        entry = file.message_type.add(name=name)
        for field, number, kind, label, type_name in fields:
            entry.field.add(name=field, number=number, type=kind, label=label, type_name=type_name)

    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    message(
        "Request",
        ("file_containing_symbol", 4, kinds.TYPE_STRING, one, None),
        ("list_services", 7, kinds.TYPE_STRING, one, None),
    )
    message("Files", ("file_descriptor_proto", 1, kinds.TYPE_BYTES, many, None))
    message("Service", ("name", 1, kinds.TYPE_STRING, one, None))
    message("Services", ("service", 1, kinds.TYPE_MESSAGE, many, ".client.reflection.Service"))
    message(
        "Response",
        ("file_descriptor_response", 4, kinds.TYPE_MESSAGE, one, ".client.reflection.Files"),
        ("list_services_response", 6, kinds.TYPE_MESSAGE, one, ".client.reflection.Services"),
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return (
        message_class(find("client.reflection.Request")),
        message_class(find("client.reflection.Response")),
    )


class Xrayd:
    """The service, with a method for each RPC that its descriptor names."""

    def __init__(self, channel):
        request, response = reflection_messages()
        reflect = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        # `list_services` is a member of a oneof: an empty string would not be sent.
        answers = list(
            reflect(iter([request(list_services="*"), request(file_containing_symbol=SERVICE)]))
        )
        self.services = [service.name for service in answers[0].list_services_response.service]
        pool = descriptor_pool.Default()
        for file in answers[1].file_descriptor_response.file_descriptor_proto:
            pool.AddSerializedFile(file)
        self._methods = {}
        for method in pool.FindServiceByName(SERVICE).methods:
            answer = message_class(method.output_type)
            streams = self._streams(pool, method)
            call = channel.unary_stream if streams else channel.unary_unary
            self._methods[method.name] = (
                message_class(method.input_type),
                call(
                    f"/{SERVICE}/{method.name}",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=answer.FromString,
                ),
            )

    @staticmethod
    def _streams(pool, method):
        file = descriptor_pb2.FileDescriptorProto()
        pool.FindServiceByName(SERVICE).file.CopyToProto(file)
        services = [service for service in file.service if SERVICE.endswith("." + service.name)]
        return any(
            entry.server_streaming for entry in services[0].method if entry.name == method.name
        )

    def __getattr__(self, name):
        request, call = self._methods[name]
        return lambda **fields: call(request(**fields))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", required=True, help="the daemon's unix socket")
    parser.add_argument("--pid", required=True, type=int)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--function", help="name of the function to switch on")
    chosen.add_argument("--all", action="store_true", help="switch everything on")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="seconds of live events, from the first on"
    )
    parser.add_argument("--out", required=True, help="where the fetched trace goes")
    return parser.parse_args()


def watch(stream, seconds):
    """Reads live events. Returns their number, the names of their functions, and their losses.

    On a busy machine the first ones may take a while: the time runs from them on.
    """
    timer = threading.Timer(max(seconds, PATIENCE), stream.cancel)
    timer.start()
    events, lost, names = 0, 0, set()
    try:
        for batch in stream:
            if events == 0 and batch.events:
                timer.cancel()
                timer = threading.Timer(seconds, stream.cancel)
                timer.start()
            events += len(batch.events)
            lost += batch.reader_lost
            names.update(function.name for function in batch.functions)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.CANCELLED:
            raise
    finally:
        timer.cancel()
    return events, lost, sorted(names)


def run(options):
    with grpc.insecure_channel(f"unix:{options.socket}", options=CHANNEL_OPTIONS) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        xrayd = Xrayd(channel)
        rule = {"all": True} if options.all else {"function": options.function}
        selection = {"include": [rule]}

        xrayd.Attach(pid=options.pid)
        try:
            stream = xrayd.StreamEvents(pid=options.pid)
            # The subscription exists when the headers are here.
            stream.initial_metadata()
            enabled = xrayd.Enable(pid=options.pid, selection=selection)
            events, lost, names = watch(stream, options.seconds)
            xrayd.Disable(pid=options.pid, selection=selection)
            size = 0
            with open(options.out, "wb") as out:
                for chunk in xrayd.FetchTrace(pid=options.pid):
                    size += out.write(chunk.data)
        finally:
            detached = xrayd.Detach(pid=options.pid).reports[0]
        return {
            "pid": options.pid,
            "version": xrayd.GetInfo().version,
            "services": sorted(xrayd.services),
            "matched": enabled.reports[0].matched,
            "events_seen": events,
            "reader_lost": lost,
            "functions": names,
            "trace_bytes": size,
            "sleds_off": detached.sleds_off,
            "text_bytes_different": detached.text_bytes_different,
            "detached": not detached.exited,
        }


def main():
    try:
        print(json.dumps(run(arguments())))
    except grpc.RpcError as error:
        reason = dict(error.trailing_metadata() or ()).get(REASON, "none")
        print(f"client.py: {error.details()} (reason: {reason})", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
