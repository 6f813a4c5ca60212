// The timeline: the calls of each thread over time.
//
// The size of the screen limits the number of drawn items, for any number of calls. Calls narrower
// than 1.5 pixels become one bar for each pixel of a lane. A page from a server requests the part
// in view as soon as calls in this part are summed up.

const AXIS = 28;
const LANE = 17;
const BETWEEN = 10;

class Timeline {
  constructor(canvas, tables, app) {
    this.app = app;
    this.lines = new Lines(tables);
    /**
     * A part of the time in more detail, as `from`, `to` and `lines`; `null` before the first
     * answer.
     */
    this.detail = null;
    this.bounds = { from: tables.head.since, to: Math.max(tables.head.until, tables.head.since + 1) };
    this.view = { ...this.bounds };
    this.scroll = 0;
    this.closed = new Set();
    this.pointer = null;
    this.dragged = null;
    this.chosen = null;
    this.surface = new Surface(canvas, (pen, width, height) => this.draw(pen, width, height));
    handle(canvas, this);
    document.getElementById("timeline-legend").hidden = !tables.head.runs;
    this.tell();
  }

  get gutter() {
    return this.surface.width < 720 ? 104 : 168;
  }

  x(time) {
    return this.gutter + ((time - this.view.from) / (this.view.to - this.view.from)) * (this.surface.width - this.gutter);
  }

  time(x) {
    return this.view.from + ((x - this.gutter) / (this.surface.width - this.gutter)) * (this.view.to - this.view.from);
  }

  /**
   * Returns the lines to draw: the detail if it covers the whole view, else the lines of the page.
   */
  get shown() {
    const { from, to } = this.view;
    return this.detail && this.detail.from <= from && this.detail.to >= to ? this.detail.lines : this.lines;
  }

  /**
   * Returns the row of each thread, with its position in pixels from the top of the list of
   * threads.
   */
  rows() {
    let top = 6;
    return this.lines.threads.map((thread) => {
      const lanes = this.closed.has(thread.number) ? 1 : thread.deepest + 1;
      const row = { thread, top, lanes, height: Math.max(lanes * LANE, 2 * LANE) };
      top += row.height + BETWEEN;
      return row;
    });
  }

  get bottom() {
    const last = this.rows().at(-1);
    return Math.max(0, (last ? last.top + last.height + BETWEEN : 0) - (this.surface.height - AXIS));
  }

  draw(pen, width, height) {
    const left = this.gutter;
    const lines = this.shown;
    const marking = this.app.marking();
    this.grid(pen, left, width, height);
    const rows = this.rows()
      .map((row) => ({ ...row, y: AXIS + row.top - this.scroll, shown: lines.threads[row.thread.number] }))
      .filter(({ y, height: high }) => y <= height && y + high >= AXIS);
    // The sheet has the thin calls and slices. The wide ones are drawn over it.
    const sheet = new Sheet(Math.ceil(width - left) + 1, Math.ceil(height - AXIS), (this.view.to - this.view.from) / (width - left));
    const lanes = [];
    for (const { y, lanes: many, shown } of rows) {
      const [{ from, to }, scale] = [this.view, 1 / sheet.span];
      const off = new OffCpuLayer(shown.off.pieces(from, to, scale), { from, scale, width: width - left, height: LANE - 1 });
      for (const lane of shown.lanes) {
        const top = y + lane.depth * LANE;
        if (lane.depth >= many || top > height || top + LANE < AXIS) continue;
        const thin = sheet.lane();
        const slices = this.gatherSlices(shown, lane, left, width, thin);
        const calls = this.gatherCalls(lane, left, 1 / thin.span, thin, marking);
        thin.paint(top - AXIS, (row) => this.nameOf(row), marking);
        lanes.push({ shown, lane, top, slices, calls, off });
      }
    }
    pen.save();
    pen.beginPath();
    pen.rect(left, AXIS, width - left, height - AXIS);
    pen.clip();
    sheet.put(pen, left, AXIS);
    for (const { shown, lane, top, slices, calls, off } of lanes) {
      for (const slice of slices) this.drawSlice(pen, shown, lane, slice, top, left, width, marking);
      for (const call of calls) this.drawCall(pen, lane, call, off, top, left, width, marking);
    }
    for (const { y, height: high, shown } of rows) for (const gap of shown.gaps) this.drawGap(pen, gap, y, high, width);
    pen.restore();
    for (const { thread, y, height: high } of rows) this.drawThread(pen, thread, y, left, width, high);
    this.drawChosen(pen, left, height);
    this.drawAxis(pen, left, width);
    this.drawPointer(pen, left, width, height);
  }

  grid(pen, left, width, height) {
    const css = colours.css;
    pen.fillStyle = css.line;
    pen.globalAlpha = 0.55;
    for (const tick of this.ticks(left, width)) pen.fillRect(Math.round(this.x(tick.time)), AXIS, 1, height - AXIS);
    pen.globalAlpha = 1;
  }

  /**
   * Returns the times that the axis labels. They are at least 120 pixels apart, so that the labels
   * fit.
   */
  ticks(left, width) {
    const { from, to } = this.view;
    const rough = (to - from) / Math.max(1, (width - left) / 120);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].map((times) => times * power).find((step) => step >= rough) ?? power);
    const ticks = [];
    for (let time = Math.ceil(from / step) * step; time <= to && ticks.length < 100; time += step) ticks.push({ time, step });
    return ticks;
  }

  /**
   * Adds thin calls to `thin`, and returns the indices of the other calls. A thin call is narrower
   * than 1.5 pixels.
   */
  gatherCalls(lane, left, scale, thin, marking) {
    const { from, to } = this.view;
    const { start, end, what, before } = lane;
    const wide = [];
    let number = firstAbove(end, from);
    while (number < start.length && start[number] <= to) {
      if ((end[number] - start[number]) * scale >= 1.5) {
        wide.push(number++);
        continue;
      }
      const pixel = Math.max(0, Math.floor((start[number] - from) * scale));
      // A group has all calls that end within this pixel. A wide call at its end is not part of the
      // group.
      let next = Math.max(number + 1, firstAbove(end, from + (pixel + 1) / scale, number + 1));
      if (next > number + 1 && (end[next - 1] - start[next - 1]) * scale >= 1.5) next--;
      let shown = Math.floor(what[number] / 2);
      // The search for a marked call examines at most 40 calls of the group.
      for (let at = number; marking && at < Math.min(next, number + 40); at++) {
        const row = Math.floor(what[at] / 2);
        if (this.app.marks(this.nameOf(row - 1))) {
          shown = row;
          break;
        }
      }
      thin.add(pixel, before[next] - before[number], shown, marking && this.app.marks(this.nameOf(shown - 1)));
      number = next;
    }
    return wide;
  }

  drawCall(pen, lane, number, off, top, left, width, marking) {
    const scale = (width - left) / (this.view.to - this.view.from);
    const x = left + (lane.start[number] - this.view.from) * scale;
    const wide = (lane.end[number] - lane.start[number]) * scale;
    const row = Math.floor(lane.what[number] / 2) - 1;
    const name = this.nameOf(row);
    const marked = marking && this.app.marks(name);
    const opacity = marking && !marked ? 0.28 : 1;
    pen.globalAlpha = opacity;
    pen.fillStyle = marked ? colours.css.match : row < 0 ? colours.css.faint : colours.of(name);
    const begin = Math.max(x, left);
    const shown = Math.min(x + wide, width) - begin;
    const box = Math.max(shown - (shown > 3 ? 1 : 0), 0.7);
    pen.fillRect(begin, top, box, LANE - 1);
    pen.globalAlpha = 1;
    off.put(pen, begin - left, box, begin, top, opacity);
    if (lane.what[number] % 2 && !lane.goesOn[number] && x + wide <= width) torn(pen, x + wide, top);
    if (shown > 24) {
      pen.fillStyle = marked ? colours.css.paper : marking ? colours.css.soft : colours.css["frame-ink"];
      this.surface.label(name, begin, top + LANE / 2, shown);
    }
  }

  /**
   * Adds thin slices to `thin`, and returns the indices of the other slices. A thin slice is
   * narrower than 1.5 pixels.
   */
  gatherSlices(thread, lane, left, width, thin) {
    const { from, to } = this.view;
    const scale = (width - left) / (to - from);
    const { at, busy, what } = lane.slices;
    const wide = thread.slice * scale >= 1.5;
    const slices = [];
    for (let slice = firstAbove(at, from / thread.slice - 1); slice < at.length && at[slice] * thread.slice <= to; slice++) {
      if (wide) slices.push(slice);
      else thin.add(Math.max(0, Math.floor((at[slice] * thread.slice - from) * scale)), busy[slice], what[slice], false);
    }
    return slices;
  }

  /**
   * Draws a slice. Its bar is as high as the busy share of the slice's time, so that a slice
   * differs in appearance from a single call.
   */
  drawSlice(pen, thread, lane, slice, top, left, width, marking) {
    const { from, to } = this.view;
    const scale = (width - left) / (to - from);
    const { at, calls, busy, what } = lane.slices;
    const wide = thread.slice * scale;
    const x = left + (at[slice] * thread.slice - from) * scale;
    const begin = Math.max(x, left - 1);
    const shown = Math.min(x + wide, width + 1) - begin;
    const box = shown - (shown > 6 ? 1 : 0);
    const high = Math.max(2, Math.min(1, busy[slice] / thread.slice) * (LANE - 2));
    pen.fillStyle = what[slice] ? colours.of(this.nameOf(what[slice] - 1)) : colours.css.faint;
    pen.globalAlpha = marking ? 0.1 : 0.3;
    pen.fillRect(begin, top, box, LANE - 1);
    pen.globalAlpha = marking ? 0.28 : 1;
    pen.fillRect(begin, top + LANE - 1 - high, box, high);
    pen.globalAlpha = 1;
    if (wide > 60 && calls[slice]) {
      pen.fillStyle = colours.css.ink;
      this.surface.label(format.counted(calls[slice], "call"), begin, top + LANE / 2, shown);
    }
  }

  drawGap(pen, gap, top, high, width) {
    const x = Math.floor(this.x(gap.start));
    const wide = Math.max(3, this.x(gap.end) - x);
    if (x > width || x + wide < this.gutter) return;
    pen.save();
    pen.beginPath();
    pen.rect(Math.max(x, this.gutter), top, Math.min(x + wide, width) - Math.max(x, this.gutter), high);
    pen.clip();
    pen.fillStyle = colours.css.bad;
    pen.globalAlpha = 0.16;
    pen.fillRect(x, top, wide, high);
    pen.globalAlpha = 0.8;
    pen.strokeStyle = colours.css.bad;
    pen.lineWidth = 1;
    pen.beginPath();
    const begin = Math.max(x, this.gutter) - ((Math.max(x, this.gutter) - x) % 6) - high;
    for (let at = begin; at < Math.min(x + wide, width); at += 6) {
      pen.moveTo(at, top + high);
      pen.lineTo(at + high, top);
    }
    pen.stroke();
    pen.restore();
  }

  drawThread(pen, thread, y, left, width, high) {
    const css = colours.css;
    pen.fillStyle = css.paper;
    pen.fillRect(0, Math.max(AXIS, y - BETWEEN / 2), left - 1, high + BETWEEN);
    pen.fillStyle = css.line;
    pen.fillRect(0, y + high + BETWEEN / 2 - 1, width, 1);
    pen.font = TEXT_FONT;
    pen.fillStyle = css.faint;
    if (thread.deepest > 0) pen.fillText(this.closed.has(thread.number) ? "▸" : "▾", 6, y + 9);
    pen.fillStyle = css.ink;
    const room = left - 28;
    pen.fillText(fitted(pen, thread.name || "(no name)", room), 20, y + 9);
    pen.fillStyle = css.soft;
    const process = thread.process && thread.process !== thread.name ? `${thread.process} ` : "";
    pen.fillText(fitted(pen, `${process}${thread.pid === thread.tid ? "" : `${thread.pid} / `}${thread.tid}`, room), 20, y + 25);
    pen.font = FRAME_FONT;
  }

  drawAxis(pen, left, width) {
    const css = colours.css;
    pen.fillStyle = css.paper;
    pen.fillRect(0, 0, width, AXIS);
    pen.fillStyle = css.line;
    pen.fillRect(0, AXIS - 1, width, 1);
    pen.fillRect(left - 1, 0, 1, this.surface.height);
    pen.font = TEXT_FONT;
    pen.fillStyle = css.soft;
    for (const { time, step } of this.ticks(left, width)) {
      const x = Math.round(this.x(time));
      pen.fillText(format.moment(time, step), x + 4, AXIS / 2 - 2);
      pen.fillRect(x, AXIS - 7, 1, 6);
    }
    // Notes with a time of their own have a mark on the axis.
    for (const note of this.app.notes.filter((note) => note.span)) {
      const x = this.x(note.span[0]);
      pen.fillStyle = note.tone === "bad" ? css.bad : note.tone === "warning" ? css.warning : css.accent;
      const begin = Math.max(x, left);
      const over = Math.min(Math.max(this.x(note.span[1]), x + 2), width);
      if (over > begin) pen.fillRect(begin, AXIS - 5, over - begin, 4);
    }
    pen.fillStyle = css.paper;
    pen.fillRect(0, 0, left - 1, AXIS - 1);
    pen.fillStyle = css.soft;
    pen.fillText(format.time(this.view.to - this.view.from), 20, AXIS / 2 - 2);
    pen.font = FRAME_FONT;
  }

  drawPointer(pen, left, width, height) {
    const css = colours.css;
    if (this.dragged) {
      const [from, to] = this.dragged;
      pen.fillStyle = css.accent;
      pen.globalAlpha = 0.18;
      pen.fillRect(Math.min(from, to), AXIS, Math.abs(to - from), height - AXIS);
      pen.globalAlpha = 1;
      pen.font = TEXT_FONT;
      pen.fillText(format.time(Math.abs(this.time(to) - this.time(from))), Math.min(from, to) + 4, AXIS + 10);
      pen.font = FRAME_FONT;
      return;
    }
    if (!this.pointer || this.pointer.x < left) return;
    pen.fillStyle = css.ink;
    pen.globalAlpha = 0.35;
    pen.fillRect(Math.round(this.pointer.x), AXIS - 6, 1, height - AXIS + 6);
    pen.globalAlpha = 1;
  }

  drawChosen(pen, left, height) {
    const chosen = this.chosen;
    const row = chosen && this.rows()[chosen.thread];
    if (!row) return;
    const depth = this.closed.has(chosen.thread) ? 0 : chosen.depth;
    const y = AXIS + row.top - this.scroll + depth * LANE;
    const x = Math.max(this.x(chosen.start), left);
    const wide = Math.min(this.x(chosen.end), this.surface.width) - x;
    if (y < AXIS - LANE || y > height || wide < -2) return;
    pen.strokeStyle = colours.css.accent;
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, Math.max(wide, 1) + 1, LANE + 1);
  }

  /**
   * Returns the item at a position: a call, a slice, a gap or a thread; `null` if there is none.
   */
  at(x, y) {
    const down = y - AXIS + this.scroll;
    const row = y < AXIS ? undefined : this.rows().find(({ top, height }) => down >= top - BETWEEN / 2 && down < top + height + BETWEEN / 2);
    if (!row) return null;
    const thread = this.shown.threads[row.thread.number];
    if (x < this.gutter) return { thread: row.thread };
    const [time, pixel] = [this.time(x), (this.view.to - this.view.from) / (this.surface.width - this.gutter)];
    const gap = thread.gaps.find((gap) => gap.start - pixel <= time && time <= Math.max(gap.end, gap.start + 3 * pixel));
    const depth = Math.floor((down - row.top) / LANE);
    const lane = thread.lanes.find((lane) => lane.depth === depth && depth < row.lanes);
    if (lane) {
      const call = this.callAt(lane, time, pixel);
      if (call >= 0) return { call: callOf(thread, lane, call), off: thread.off.at(time) };
      const slice = firstAbove(lane.slices.at, time / thread.slice - 1);
      const found = lane.slices.at[slice];
      if (found !== undefined && found * thread.slice <= time + pixel && !gap) return { slice, lane, of: thread };
    }
    return gap ? { gap } : null;
  }

  callAt(lane, time, pixel) {
    const after = firstAbove(lane.start, time);
    // The call that is open at this time has priority. Any other result is at most one pixel away.
    for (const number of [after - 1, after]) {
      if (number >= 0 && number < lane.start.length && lane.start[number] - pixel <= time && time <= lane.end[number] + pixel) return number;
    }
    return -1;
  }

  // Methods that `handle` calls.

  point(x, y, event) {
    this.pointer = event ? { x, y } : null;
    this.surface.soon();
    const found = event && this.at(x, y);
    if (!found || found.thread) tip.hide();
    else tip.show(event, this.told(found));
  }

  told({ call, off, slice, lane, of, gap }) {
    if (gap) {
      const what = gap.losses > 1 ? `Events were lost here ${format.count(gap.losses)} times` : "Events were lost here";
      const events = gap.events ? format.counted(gap.events, "event") : "an unknown number of events";
      return [element("div", "name", what), element("p", "", `${events}, detected at ${format.moment(gap.end, 1)}. The end of the calls that were open before is unknown.`)];
    }
    if (call) {
      const content = [element("div", "name", this.nameOf(call.row)), numbers(this.facts(call))];
      if (call.goesOn) content.push(element("p", "", "The call goes on after this part. It took at least this time."));
      else if (call.unfinished) content.push(element("p", "warning", "The call has no exit. It took at least this time."));
      if (off) content.push(element("p", "", offCpuText(off)));
      content.push(...this.app.functionFacts(this.nameOf(call.row)));
      return content;
    }
    const { slices } = lane;
    const name = this.nameOf(slices.what[slice] - 1);
    return [
      element("div", "name", format.counted(slices.calls[slice], "call")),
      numbers([["slice", format.time(of.slice)], ["time in calls", format.share(slices.busy[slice], of.slice)], ["each shorter than", format.time(of.keptFrom)]]),
      element("p", "", slices.calls[slice] === 1 ? name : `${name}, and perhaps other functions`),
    ];
  }

  nameOf(row) {
    return row < 0 ? OTHER : this.app.table.name[row];
  }

  facts(call) {
    const pairs = [
      [call.unfinished ? "took at least" : "took", format.time(call.end - call.start)],
      ["began at", format.moment(call.start, Math.max(1, Math.min(1000, (call.end - call.start) / 100)))],
    ];
    const thread = this.lines.threads[call.thread];
    if (thread) pairs.push(["thread", thread.name || String(thread.tid)]);
    pairs.push(["depth", String(call.depth)], ...offCpuFacts(call.end - call.start, call.off, call.ready));
    return pairs;
  }

  click(x, y) {
    const found = this.at(x, y);
    if (found?.thread) {
      const { number } = found.thread;
      if (!this.closed.delete(number)) this.closed.add(number);
      this.surface.soon();
      return;
    }
    this.choose(found?.call ?? null);
  }

  doubleClick(x, y) {
    const found = this.at(x, y);
    if (found?.call) {
      this.choose(found.call);
      this.showChosen();
    } else if (found?.slice !== undefined) {
      const begin = found.lane.slices.at[found.slice] * found.of.slice;
      this.see(begin, begin + found.of.slice);
    }
  }

  move(across, down) {
    const { from, to } = this.view;
    const time = (across / (this.surface.width - this.gutter)) * (to - from);
    if (across) this.see(from + time, to + time);
    this.scroll = Math.max(0, Math.min(this.bottom, this.scroll + down));
    this.surface.soon();
  }

  zoom(factor, x = (this.surface.width + this.gutter) / 2) {
    const { from, to } = this.view;
    const middle = this.time(Math.max(x, this.gutter));
    this.see(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  span(from, to) {
    this.dragged = [Math.max(from, this.gutter), Math.max(to, this.gutter)];
    this.surface.soon();
  }

  zoomToSpan(from, to) {
    this.dragged = null;
    const times = [this.time(Math.max(from, this.gutter)), this.time(Math.max(to, this.gutter))];
    this.see(Math.min(...times), Math.max(...times));
  }

  // Methods for keys and buttons.

  reset() {
    this.choose(null);
    this.scroll = 0;
    this.see(this.bounds.from, this.bounds.to);
  }

  choose(call) {
    this.chosen = call;
    this.surface.soon();
    const warning = call?.goesOn ? "goes on after this part" : call?.unfinished ? "without exit" : "";
    this.app.choose(call && { name: this.nameOf(call.row), facts: this.facts(call), warning });
  }

  /** Zooms to a call and scrolls its thread into view. */
  show(call) {
    const length = Math.max(call.end - call.start, 4);
    this.closed.delete(call.thread);
    this.see(call.start - length * 0.15, call.end + length * 0.15);
    const row = this.rows()[call.thread];
    if (!row) return;
    const top = row.top + call.depth * LANE;
    const high = this.surface.height - AXIS;
    if (top < this.scroll || top + 2 * LANE > this.scroll + high) this.scroll = Math.max(0, Math.min(this.bottom, top - high / 3));
    this.surface.soon();
  }

  showChosen() {
    if (this.chosen) this.show(this.chosen);
  }

  /**
   * Selects the next call of the thread at the depth of the selected call, or the previous one.
   * `steps` is 1 or -1. If calls are marked, skips the other calls.
   */
  next(steps) {
    const chosen = this.chosen;
    const lane = chosen && this.shown.lane(chosen.thread, chosen.depth);
    if (!lane) return;
    const thread = this.shown.threads[chosen.thread];
    let number = firstAbove(lane.start, chosen.start) - 1 + steps;
    const wanted = (number) => !this.app.marking() || this.app.marks(this.nameOf(Math.floor(lane.what[number] / 2) - 1));
    while (number >= 0 && number < lane.start.length && !wanted(number)) number += steps;
    if (number < 0 || number >= lane.start.length) return;
    const call = callOf(thread, lane, number);
    this.choose(call);
    const { from, to } = this.view;
    if (call.start < from || call.end > to) {
      const length = Math.max(to - from, 1.3 * (call.end - call.start));
      const middle = (call.start + call.end) / 2;
      this.see(middle - length / 2, middle + length / 2);
    }
  }

  see(from, to) {
    const all = this.bounds.to - this.bounds.from;
    const length = Math.max(Math.min(to - from, all), Math.min(all, 8));
    from = Math.max(this.bounds.from, Math.min(from, this.bounds.to - length));
    this.view = { from, to: from + length };
    this.surface.soon();
    this.tell();
    this.app.moved(this);
  }

  /**
   * Updates the text above the timeline: the range in view, and the number of summed-up calls in
   * it. On a page from a server, also schedules a request for single calls.
   */
  tell() {
    const { from, to } = this.view;
    const { calls, below } = this.shown.summed(from, to);
    const says = [element("b", "", format.time(to - from)), ` from ${format.moment(from, (to - from) / 100)}`];
    if (calls) {
      const close = to - from < (this.bounds.to - this.bounds.from) / 4;
      says.push(` · ${format.counted(calls, "call")} shorter than ${format.time(below)} ${calls === 1 ? "is" : "are"} summed up here`);
      if (this.app.head.served) says.push("; zoom in to see single calls");
      else if (close) {
        const part = `--since ${format.option(from)} --until ${format.option(Math.ceil(to))}`;
        says.push("; to see single calls: ", element("code", "", "xrayctl view FILE"), " or ", element("code", "", `xrayctl report FILE --html ${part} -o part.html`));
      }
    }
    document.getElementById("timeline-says").replaceChildren(...says);
    clearTimeout(this.asking);
    // The whole view has as many times without a processor as the server has for it.
    const off = this.shown.offLeftOut > 0 && to - from < (this.bounds.to - this.bounds.from) / 4;
    if ((calls || off) && this.app.head.served) this.asking = setTimeout(() => this.ask(), 180);
  }

  /** Requests the range in view from the server, and half of its length on either side. */
  async ask() {
    const { from, to } = this.view;
    const margin = (to - from) / 2;
    const known = this.detail;
    // The server has more detail only for a much shorter range. The known range is reused while it
    // covers the view and is less than 6 times as long.
    if (known && known.from <= from && known.to >= to && (known.to - known.from) / (to - from) < 6) return;
    const since = Math.max(this.bounds.from, Math.floor(from - margin));
    const until = Math.min(this.bounds.to, Math.ceil(to + margin)) + 1;
    this.asked?.abort();
    this.asked = new AbortController();
    try {
      const answer = await fetch(`window?since=${since}&until=${until}`, { signal: this.asked.signal, cache: "no-store" });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const lines = new Lines(new Tables(new Uint8Array(await answer.arrayBuffer())));
      lines.complete(this.lines, since, until);
      this.detail = { from: since, to: until, lines };
      this.surface.soon();
      this.tell();
    } catch (error) {
      if (error.name === "AbortError") return;
      document.getElementById("timeline-says").append(element("span", "warning", ` · cannot load single calls: ${error.message}`));
    }
  }
}

/** The name of functions without a row in the table. */
const OTHER = "(function left out of the table)";

/** Draws the jagged end of a call without an exit. */
function torn(pen, x, top) {
  pen.fillStyle = colours.css.paper;
  pen.beginPath();
  for (let tooth = 0; tooth < 4; tooth++) {
    const y = top + (tooth * (LANE - 1)) / 4;
    pen.moveTo(x + 0.5, y);
    pen.lineTo(x - 4, y + (LANE - 1) / 8);
    pen.lineTo(x + 0.5, y + (LANE - 1) / 4);
  }
  pen.fill();
}

function fitted(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let letters = text.length;
  while (letters > 1 && pen.measureText(`${text.slice(0, letters)}…`).width > room) letters--;
  return `${text.slice(0, letters)}…`;
}
