// Speedscope's own import of a file, without its page: what it would draw, as JSON.
//
// usage: node speedscope.js FILE
//
// npm's package `speedscope` holds one script for the page. What imports files is within it under a name that nobody outside
// sees; the names of its functions are kept.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const file = process.argv[2];

// By itself, node would show the line of the bundle, which is very long.
process.on("uncaughtException", (error) => {
  console.error(error.stack);
  process.exit(1);
});

// A document in which everything can be had, looked at and called, but which has no body to draw on.
class NoPage extends Error {}
const anything = new Proxy(function () {}, {
  get: (_, name) => {
    if (name === "body") throw new NoPage();
    return name === Symbol.toPrimitive ? () => "" : anything;
  },
  set: () => true,
  apply: () => anything,
});

const release = path.join(path.dirname(require.resolve("speedscope/package.json")), "dist/release");
const [bundle] = fs.readdirSync(release).filter((name) => /^speedscope-.*\.js$/.test(name));
const page = vm.createContext({
  console: new console.Console(process.stderr),
  document: anything,
  location: { hash: "" },
  performance,
  setTimeout,
  TextDecoder,
  TextEncoder,
  URL,
});
page.window = page.self = page;
const script = fs
  .readFileSync(path.join(release, bundle), "utf8")
  .replace(/([\w$]+)=\{\}(?=;[\w$]+\(\1,\{importFromFileSystemDirectoryEntry:)/, "$1=window.importer={}");
try {
  vm.runInContext(script, page, "speedscope");
} catch (error) {
  // To draw is the last thing it does.
  if (!(error instanceof NoPage)) throw error;
}

setImmediate(async () => {
  const text = fs.readFileSync(file, "utf8");
  const group = await page.importer.importProfileGroupFromText(path.basename(file), text);
  const profiles = group.profiles.map((profile) => {
    const events = [];
    const event = (kind) => (node, at) => {
      const { name, file, line } = node.frame;
      events.push([kind, name, file, line, at]);
    };
    profile.forEachCall(event("open"), event("close"));
    // Functions of the same name in different lines are different to it, but not to who reads the names.
    const stacks = new Map();
    const walk = (node, below) => {
      const stack = [...below, node.frame.name];
      const key = JSON.stringify(stack);
      stacks.set(key, (stacks.get(key) ?? 0) + node.getSelfWeight());
      for (const child of node.children) walk(child, stack);
    };
    for (const root of profile.getAppendOrderCalltreeRoot().children) walk(root, []);
    return {
      name: profile.getName(),
      unit: profile.getWeightUnit(),
      total: profile.getTotalWeight(),
      events,
      stacks: [...stacks].filter(([, weight]) => weight > 0).map(([key, weight]) => [JSON.parse(key), weight]),
    };
  });
  console.log(JSON.stringify({ name: group.name, profiles }));
});
