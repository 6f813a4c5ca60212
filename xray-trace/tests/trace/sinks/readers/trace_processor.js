// Perfetto's trace processor, as the web page runs it, without a web page.
//
// usage: node trace_processor.js FOLDER < REQUESTS > REPLIES
//
// FOLDER holds the page's engine_bundle.js and trace_processor.wasm; requests and replies are streams of
// `perfetto.protos.TraceProcessorRpcStream`. The engine believes that it is a worker, so it gets what a worker has.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const read = (name) => fs.readFileSync(path.join(process.argv[2], path.basename(name)));

// By itself, node would show the line of the bundle, which is all of it.
process.on("uncaughtException", (error) => {
  console.error(error.stack);
  process.exit(1);
});

class XMLHttpRequest {
  open(_method, name) {
    this.response = read(name);
  }
  send() {}
}

const worker = vm.createContext({
  WorkerGlobalScope: true,
  XMLHttpRequest,
  console: new console.Console(process.stderr),
  TextDecoder,
  URL,
  performance,
  crypto,
  location: { href: "file:///" },
});
worker.self = worker;
vm.runInContext(read("engine_bundle.js").toString(), worker, "engine_bundle.js");

const port = {
  postMessage: (reply) => {
    for (let at = 0; at < reply.length; ) at += fs.writeSync(1, reply, at);
  },
};
worker.onmessage({ data: port });
// The engine is ready when what it awaits has happened, none of which takes any time.
setImmediate(() => {
  const bytes = vm.runInContext("(buffer) => new Uint8Array(buffer)", worker);
  port.onmessage({ data: bytes(fs.readFileSync(0)) });
});
