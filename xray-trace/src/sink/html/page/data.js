// What the page is about: a document, made where the trace was read. It begins with the length of its head; behind the head, which is JSON, stand
// columns of numbers, as unsigned LEB128.

class Tables {
  constructor(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const length = view.getUint32(0, true);
    this.head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    this.bytes = bytes;
    this.base = 4 + length;
  }

  /** The numbers of a column; none if there is no such column. Beyond 2^53 they are rounded. */
  column(name) {
    const [at, , count] = this.head.columns[name] ?? [0, 0, 0];
    const numbers = new Float64Array(count);
    const bytes = this.bytes;
    let place = this.base + at;
    for (let index = 0; index < count; index++) {
      let byte = bytes[place++];
      let number = byte & 127;
      let scale = 128;
      while (byte > 127) {
        byte = bytes[place++];
        number += (byte & 127) * scale;
        scale *= 128;
      }
      numbers[index] = number;
    }
    return numbers;
  }
}

/** The document that the page was made with. */
async function embedded() {
  const element = document.getElementById("data");
  const text = element.textContent.trim();
  const packed = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  // It is not needed twice.
  element.remove();
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Tables(new Uint8Array(await new Response(plain).arrayBuffer()));
}

/** The table of functions, column by column, with names. Rows are numbered from 0. */
class FunctionTable {
  constructor(tables) {
    const names = tables.head.names;
    const column = (name) => tables.column(`function.${name}`);
    this.name = Array.from(column("name"), (name) => names[name]);
    this.module = Array.from(column("module"), (module) => (module ? names[module - 1] : ""));
    this.length = this.name.length;
    const lines = column("line");
    this.source = Array.from(column("file"), (file, row) => {
      if (!lines[row]) return "";
      return lines[row] > 1 ? `${names[file]}:${lines[row] - 1}` : names[file];
    });
    for (const plain of ["id", "calls", "unfinished", "total", "self", "sum"]) this[plain] = column(plain);
    for (const known of ["min", "mean", "median", "p90", "p99", "p999", "max"]) {
      // NaN: no call finished, or the file does not tell.
      this[known] = column(known).map((number) => (number ? number - 1 : NaN));
    }
    this.bars = ranges(column("bars"));
    this.barAt = tables.column("bar.at");
    this.barCalls = tables.column("bar.calls");
    this.longest = ranges(column("longest"));
    const longest = (name) => tables.column(`longest.${name}`);
    const [thread, depth, start, length] = ["thread", "depth", "start", "len"].map(longest);
    this.longestCalls = Array.from(thread, (number, at) => ({
      thread: number - 1,
      depth: depth[at],
      start: start[at],
      length: Math.floor(length[at] / 2),
      unfinished: length[at] % 2 === 1,
    }));
    this.rowsByName = new Map();
    this.name.forEach((name, row) => {
      const rows = this.rowsByName.get(name);
      if (rows) rows.push(row);
      else this.rowsByName.set(name, [row]);
    });
  }

  /** The bars of a row's picture: from which duration to which, and how many calls. */
  spread(row) {
    const [from, to] = this.bars(row);
    const bars = [];
    for (let at = from; at < to; at++) {
      bars.push({ from: barBegin(this.barAt[at]), to: barBegin(this.barAt[at] + 1), at: this.barAt[at], calls: this.barCalls[at] });
    }
    return bars;
  }

  longestOf(row) {
    const [from, to] = this.longest(row);
    return this.longestCalls.slice(from, to);
  }
}

/** The shortest duration of a bar. */
function barBegin(bar) {
  return bar < 4 ? bar : (4 + (bar % 4)) * 2 ** (Math.floor(bar / 4) - 1);
}

/** From lengths to where each range begins and ends. */
function ranges(lengths) {
  const begins = new Float64Array(lengths.length + 1);
  lengths.forEach((length, at) => (begins[at + 1] = begins[at] + length));
  return (at) => [begins[at], begins[at + 1]];
}

/** The first index from `from` on whose number is greater than `limit`, in numbers that grow. */
function firstAbove(numbers, limit, from = 0, to = numbers.length) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (numbers[middle] > limit) to = middle;
    else from = middle + 1;
  }
  return from;
}
