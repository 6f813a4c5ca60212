// The times for which a thread had no processor, within its calls. The times of a thread do not
// overlap, and are in order.

/** The states of a thread without a processor, as the document numbers them. */
const UNKNOWN = 0;
const READY = 1;
const WAITING = 2;

class OffCpu {
  constructor(start, end, state) {
    this.start = start;
    this.end = end;
    this.state = state;
    const lengths = start.map((begin, at) => end[at] - begin);
    /** For each time, the sum of the times before it. The last entry is the sum of all times. */
    this.before = sums(lengths, 0, lengths.length);
    /** The same for the times of each state, by its number. */
    this.stateBefore = [UNKNOWN, READY, WAITING].map((one) => sums(lengths.map((length, at) => (state[at] === one ? length : 0)), 0, lengths.length));
  }

  /**
   * Returns the pieces that a drawing of a view needs, in order of time. Times narrower than 1.5
   * pixels become one piece for each pixel. `scale` is the number of pixels for a nanosecond. A
   * piece has its begin and its end, its share without a processor, and its state; the state of a
   * pixel is the one with the most time.
   */
  pieces(from, to, scale) {
    const { start, end, state, before, stateBefore } = this;
    const pieces = { from: [], to: [], share: [], state: [] };
    const add = (begin, over, share, kind) => {
      pieces.from.push(begin);
      pieces.to.push(over);
      pieces.share.push(share);
      pieces.state.push(kind);
    };
    let at = firstAbove(end, from);
    while (at < start.length && start[at] <= to) {
      if ((end[at] - start[at]) * scale >= 1.5) {
        add(start[at], end[at], 1, state[at]);
        at++;
        continue;
      }
      const pixel = Math.max(0, Math.floor((start[at] - from) * scale));
      const over = from + (pixel + 1) / scale;
      const next = Math.max(at + 1, firstAbove(end, over, at + 1));
      const off = before[next] - before[at];
      const times = stateBefore.map((all) => all[next] - all[at]);
      const kind = times.indexOf(Math.max(...times));
      add(from + pixel / scale, over, Math.min(1, off * scale), kind);
      at = next;
    }
    return pieces;
  }

  /** Returns the time that contains this moment, or `null`. */
  at(time) {
    const found = firstAbove(this.end, time);
    if (!(this.start[found] <= time)) return null;
    return { start: this.start[found], end: this.end[found], state: this.state[found] };
  }
}

/** Returns the times of each thread. `threads` is the number of threads. */
function offCpuOf(tables, threads) {
  const [row, start, end, state] = ["thread", "gap", "len", "state"].map((name) => tables.column(`off.${name}`));
  const found = Array.from({ length: threads }, () => new OffCpu(start.subarray(0, 0), end.subarray(0, 0), state.subarray(0, 0)));
  for (let at = 0; at < row.length; ) {
    const first = at;
    let before = 0;
    for (; at < row.length && row[at] === row[first]; at++) {
      // The loop replaces the gaps and the lengths by begins and ends.
      start[at] += before;
      end[at] += start[at];
      before = end[at];
    }
    found[row[first]] = new OffCpu(start.subarray(first, at), end.subarray(first, at), state.subarray(first, at));
  }
  return found;
}

/**
 * Returns the pairs of a label and a value for the time of a call on and off the CPU; none if that
 * time is not known. `length` is the duration of the call.
 */
function offCpuFacts(length, off, ready) {
  if (Number.isNaN(off)) return [];
  const pairs = [["on CPU", format.time(Math.max(0, length - off))], ["off CPU", format.time(off)]];
  if (ready) pairs.push(["ready to run", format.time(ready)]);
  return pairs;
}

/** Returns a sentence about a time without a processor. */
function offCpuText({ start, end, state }) {
  const time = format.time(end - start);
  if (state === READY) return `Here the thread had no processor for ${time}: it was ready to run.`;
  if (state === WAITING) return `Here the thread had no processor for ${time}: it waited.`;
  return `Here the thread had no processor for ${time}. The reason is unknown.`;
}

/**
 * The layer of a thread over the bars of its calls, as high as a bar. A bar fades where the thread
 * had no processor, and has a line at its bottom in the colour of the state, if that is known. The
 * pieces are drawn once, into an image, and not again for each call: a canvas is slow at that
 * number.
 */
class OffCpuLayer {
  constructor(pieces, { from, scale, width, height }) {
    this.pieces = pieces;
    this.from = from;
    this.scale = scale;
    this.height = height;
    this.image = null;
    if (!pieces.from.length) return;
    this.ratio = window.devicePixelRatio || 1;
    this.image = new OffscreenCanvas(Math.ceil(width * this.ratio), Math.ceil(height * this.ratio));
    const pen = this.image.getContext("2d");
    pen.scale(this.ratio, this.ratio);
    const css = colours.css;
    pieces.from.forEach((begin, at) => {
      const left = Math.max(0, (begin - from) * scale);
      const wide = Math.min(width, (pieces.to[at] - from) * scale) - left;
      pen.globalAlpha = 0.6 * pieces.share[at];
      pen.fillStyle = css.paper;
      pen.fillRect(left, 0, wide, height);
      if (!pieces.state[at]) return;
      pen.globalAlpha = pieces.share[at];
      pen.fillStyle = pieces.state[at] === READY ? css.ready : css.waiting;
      pen.fillRect(left, height - 3, wide, 3);
    });
  }

  /** Draws the part over a bar. `left` is the begin of the bar, from the begin of the view. */
  put(pen, left, wide, x, y, opacity) {
    if (!this.image || wide <= 0) return;
    // A copy takes time even where the image is empty.
    const first = firstAbove(this.pieces.to, this.from + left / this.scale);
    if (!(this.pieces.from[first] < this.from + (left + wide) / this.scale)) return;
    pen.globalAlpha = opacity;
    pen.drawImage(this.image, left * this.ratio, 0, wide * this.ratio, this.image.height, x, y, wide, this.height);
    pen.globalAlpha = 1;
  }
}
