// The document with the data of the page. The program that reads the trace writes the document. It
// begins with the length of its head in bytes, as a little-endian u32. The head follows, in JSON.
// Columns of numbers come after the head, as unsigned LEB128.

class Tables {
  constructor(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const length = view.getUint32(0, true);
    this.head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    this.bytes = bytes;
    this.base = 4 + length;
  }

  /**
   * Returns the numbers of a column, or an empty array if the column does not exist. Numbers above
   * 2^53 are rounded.
   */
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

/** Returns the document that is embedded in the page. */
async function embedded() {
  const element = document.getElementById("data");
  const text = element.textContent.trim();
  const packed = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  // The page reads this element only once.
  element.remove();
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Tables(new Uint8Array(await new Response(plain).arrayBuffer()));
}

/**
 * The table of functions: one array for each column, with names resolved. Row numbers begin at 0.
 */
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
      // NaN: no call has finished, or the file does not contain the value.
      this[known] = column(known).map((number) => (number ? number - 1 : NaN));
    }
    this.bars = ranges(column("bars"));
    this.barAt = tables.column("bar.at");
    this.barCalls = tables.column("bar.calls");
    this.longest = ranges(column("longest"));
    const longest = (name) => tables.column(`longest.${name}`);
    const [thread, depth, start, length, off, ready] = ["thread", "depth", "start", "len", "off", "ready"].map(longest);
    this.longestCalls = Array.from(thread, (number, at) => ({
      thread: number - 1,
      depth: depth[at],
      start: start[at],
      length: Math.floor(length[at] / 2),
      unfinished: length[at] % 2 === 1,
      off: off[at] ? off[at] - 1 : NaN,
      ready: ready[at] ?? 0,
    }));
    this.rowsByName = new Map();
    this.name.forEach((name, row) => {
      const rows = this.rowsByName.get(name);
      if (rows) rows.push(row);
      else this.rowsByName.set(name, [row]);
    });
  }

  /**
   * Returns the bars of a row's histogram: for each bar, its range of durations and its number of
   * calls.
   */
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

/** Returns the shortest duration of a bar. */
function barBegin(bar) {
  return bar < 4 ? bar : (4 + (bar % 4)) * 2 ** (Math.floor(bar / 4) - 1);
}

/**
 * Returns a function that maps an index to the begin and the end of its range. Range `n` has the
 * length `lengths[n]`, and begins at the end of range `n - 1`.
 */
function ranges(lengths) {
  const begins = new Float64Array(lengths.length + 1);
  lengths.forEach((length, at) => (begins[at + 1] = begins[at] + length));
  return (at) => [begins[at], begins[at + 1]];
}

/**
 * Returns the first index from `from` whose number is greater than `limit`, or `to` if there is
 * none. `numbers` must be in ascending order.
 */
function firstAbove(numbers, limit, from = 0, to = numbers.length) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (numbers[middle] > limit) to = middle;
    else from = middle + 1;
  }
  return from;
}
