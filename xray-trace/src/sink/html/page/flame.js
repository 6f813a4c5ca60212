// The flame graph, or icicle graph. The width of a frame is the time that was spent in its stack.

const FRAME_HEIGHT = 19;

class Flame {
  constructor(canvas, tables, app) {
    this.app = app;
    this.icicle = false;
    const column = (name) => tables.column(`frame.${name}`);
    const [back, names] = [column("back"), column("name")];
    this.calls = column("calls");
    this.unfinished = column("unfinished");
    this.self = column("self");
    /**
     * The number of stacks that a frame replaces, because the page has no room for them; 0 for an
     * ordinary frame.
     */
    this.stacks = column("stacks");
    this.length = back.length;
    this.parent = Int32Array.from(back, (steps, at) => (steps ? at - steps : -1));
    this.name = Array.from(names, (name, at) =>
      this.stacks[at] ? `(${format.counted(this.stacks[at], "smaller stack")})` : tables.head.names[name],
    );
    this.arrange();
    this.view = { from: 0, to: this.all || 1 };
    this.scroll = 0;
    this.hovered = -1;
    this.chosen = -1;
    this.surface = new Surface(canvas, (pen, width, height) => this.draw(pen, width, height));
    handle(canvas, this);
  }

  /**
   * Computes the totals, the depths and the left edges of all frames. A caller has a lower index
   * than its callees.
   */
  arrange() {
    const { length, parent } = this;
    this.total = Float64Array.from(this.self);
    for (let at = length - 1; at >= 0; at--) if (parent[at] >= 0) this.total[parent[at]] += this.total[at];
    this.depth = new Int32Array(length);
    const callees = Array.from({ length: length + 1 }, () => []);
    for (let at = 0; at < length; at++) {
      this.depth[at] = parent[at] < 0 ? 0 : this.depth[parent[at]] + 1;
      callees[parent[at] + 1].push(at);
    }
    this.left = new Float64Array(length);
    this.all = 0;
    for (const outer of callees[0]) this.all += this.total[outer];
    callees.forEach((siblings, caller) => {
      siblings.sort((one, other) => (this.stacks[one] ? 1 : 0) - (this.stacks[other] ? 1 : 0) || this.total[other] - this.total[one] || one - other);
    });
    // Callers come before their callees, so the left edge of a caller is known here.
    callees.forEach((siblings, caller) => {
      let left = caller === 0 ? 0 : this.left[caller - 1];
      for (const at of siblings) {
        this.left[at] = left;
        left += this.total[at];
      }
    });
    this.callees = callees;
    this.deepest = this.depth.reduce((most, depth) => Math.max(most, depth), 0);
  }

  get bottom() {
    return Math.max(0, (this.deepest + 1) * FRAME_HEIGHT + 8 - this.surface.height);
  }

  top(depth) {
    const down = depth * FRAME_HEIGHT - this.scroll;
    return this.icicle ? down + 4 : this.surface.height - 4 - FRAME_HEIGHT - down;
  }

  draw(pen, width, height) {
    const { from, to } = this.view;
    const scale = width / (to - from);
    const css = colours.css;
    const marking = this.app.marking();
    const queue = [...this.callees[0]].reverse();
    while (queue.length) {
      const at = queue.pop();
      const left = (this.left[at] - from) * scale;
      const wide = this.total[at] * scale;
      if (wide < 0.35 || left > width || left + wide < 0) continue;
      const top = this.top(this.depth[at]);
      if (top > -FRAME_HEIGHT && top < height) this.frame(pen, at, left, wide, top, width, marking);
      const further = this.icicle ? top < height : top > -FRAME_HEIGHT;
      if (further || this.scroll > 0) for (const callee of this.callees[at + 1]) queue.push(callee);
    }
    if (!this.length) {
      pen.font = TEXT_FONT;
      pen.fillStyle = css.soft;
      pen.fillText("No call took any time.", 16, 24);
    }
  }

  frame(pen, at, left, wide, top, width, marking) {
    const css = colours.css;
    const begin = Math.max(left, -1);
    const shown = Math.min(left + wide, width + 1) - begin;
    const box = Math.max(shown - (shown > 3 ? 1 : 0), 0.5);
    const marked = marking && this.app.marks(this.name[at]) && !this.stacks[at];
    pen.globalAlpha = marking && !marked ? 0.3 : 1;
    pen.fillStyle = marked ? css.match : this.stacks[at] ? css.line : colours.of(this.name[at]);
    pen.fillRect(begin, top, box, FRAME_HEIGHT - 1);
    pen.globalAlpha = 1;
    if (at === this.hovered || at === this.chosen) {
      pen.strokeStyle = at === this.chosen ? css.accent : css.ink;
      pen.lineWidth = at === this.chosen ? 2 : 1;
      pen.strokeRect(begin + 1, top + 1, Math.max(box - 2, 1), FRAME_HEIGHT - 3);
    }
    if (shown > 20) {
      pen.fillStyle = marked ? css.paper : marking ? css.soft : css["frame-ink"];
      this.surface.label(this.name[at], Math.max(begin, 0), top + FRAME_HEIGHT / 2, shown - Math.max(0, -begin));
    }
  }

  /** Returns the frame at a position, or -1. */
  at(x, y) {
    const { width, height } = this.surface;
    const inner = this.icicle ? y - 4 : height - 4 - y;
    const depth = Math.floor((inner + this.scroll) / FRAME_HEIGHT);
    const time = this.view.from + (x / width) * (this.view.to - this.view.from);
    let siblings = this.callees[0];
    for (let level = 0; ; level++) {
      const found = siblings.find((at) => this.left[at] <= time && time < this.left[at] + this.total[at]);
      if (found === undefined || level > depth) return -1;
      if (level === depth) return found;
      siblings = this.callees[found + 1];
    }
  }

  /** Returns the position of a frame's centre on the canvas. */
  placeOf(at) {
    const { from, to } = this.view;
    const middle = this.left[at] + this.total[at] / 2;
    return { x: ((middle - from) / (to - from)) * this.surface.width, y: this.top(this.depth[at]) + FRAME_HEIGHT / 2 };
  }

  /**
   * Returns the time in frames with a marked name, the time of all frames, and the number of marked
   * frames. Time in a marked frame within another marked frame counts once.
   */
  markedShare() {
    const within = new Uint8Array(this.length);
    let [time, frames] = [0, 0];
    for (let at = 0; at < this.length; at++) {
      const outer = this.parent[at] >= 0 && within[this.parent[at]];
      const marked = !this.stacks[at] && this.app.marks(this.name[at]);
      within[at] = outer || marked ? 1 : 0;
      if (marked) frames++;
      if (marked && !outer) time += this.total[at];
    }
    return { time, all: this.all, frames };
  }

  /**
   * Returns the callers and the callees of all functions with this name: pairs of a name and a
   * time, the longest time first. Time within a call of the same pair of names counts once.
   */
  neighbours(name) {
    const [callers, callees] = [new Map(), new Map()];
    const add = (sums, who, time) => sums.set(who, (sums.get(who) ?? 0) + time);
    for (let at = 0; at < this.length; at++) {
      const caller = this.parent[at];
      if (caller >= 0 && (this.name[at] === name || this.name[caller] === name) && this.isNested(at)) continue;
      if (this.name[at] === name && !this.stacks[at]) add(callers, caller < 0 ? "" : this.name[caller], this.total[at]);
      if (caller >= 0 && this.name[caller] === name && !this.stacks[caller]) add(callees, this.name[at], this.total[at]);
    }
    const sorted = (sums) => [...sums].sort((one, other) => other[1] - one[1] || (one[0] < other[0] ? -1 : 1));
    return { callers: sorted(callers), callees: sorted(callees) };
  }

  /** Returns whether a frame further out has the names of this frame and of its caller. */
  isNested(at) {
    const [name, caller] = [this.name[at], this.name[this.parent[at]]];
    for (let outer = this.parent[at]; this.parent[outer] >= 0; outer = this.parent[outer])
      if (this.name[outer] === name && this.name[this.parent[outer]] === caller) return true;
    return false;
  }

  // Methods that `handle` calls.

  point(x, y, event) {
    const at = event ? this.at(x, y) : -1;
    if (at !== this.hovered) {
      this.hovered = at;
      this.surface.soon();
    }
    if (at < 0) tip.hide();
    else tip.show(event, this.told(at));
  }

  click(x, y) {
    const at = this.at(x, y);
    this.choose(at);
    if (at >= 0) this.show(at);
  }

  doubleClick() {}

  move(across, down) {
    const { from, to } = this.view;
    const time = (across / this.surface.width) * (to - from);
    this.see(from + time, to + time);
    this.scroll = Math.max(0, Math.min(this.bottom, this.scroll + (this.icicle ? down : -down)));
    this.surface.soon();
  }

  zoom(factor, x = this.surface.width / 2) {
    const { from, to } = this.view;
    const middle = from + (x / this.surface.width) * (to - from);
    this.see(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  span() {}

  zoomToSpan() {}

  // Methods for keys and buttons.

  reset() {
    this.choose(-1);
    this.scroll = 0;
    this.see(0, this.all || 1);
  }

  choose(at) {
    this.chosen = at;
    this.surface.soon();
    this.app.choose(at < 0 ? null : { name: this.name[at], facts: this.facts(at), plain: this.stacks[at] > 0 });
  }

  show(at) {
    this.see(this.left[at], this.left[at] + Math.max(this.total[at], 1e-9));
    const top = this.depth[at] * FRAME_HEIGHT;
    const high = this.surface.height;
    if (top - this.scroll > high - 2 * FRAME_HEIGHT || top < this.scroll) this.scroll = Math.max(0, Math.min(this.bottom, top - high / 3));
    this.surface.soon();
  }

  showChosen() {
    if (this.chosen >= 0) this.show(this.chosen);
  }

  /**
   * Selects and shows the next marked frame, or the previous one. `steps` is 1 or -1. The widest
   * frame is the first.
   */
  next(steps) {
    const marked = [];
    for (let at = 0; at < this.length; at++) if (!this.stacks[at] && this.app.marking() && this.app.marks(this.name[at])) marked.push(at);
    if (!marked.length) return;
    marked.sort((one, other) => this.total[other] - this.total[one] || one - other);
    const here = marked.indexOf(this.chosen);
    const at = marked[(here + steps + marked.length + (here < 0 && steps < 0 ? 1 : 0)) % marked.length];
    this.choose(at);
    this.show(at);
  }

  turn(icicle) {
    this.icicle = icicle;
    this.scroll = 0;
    this.surface.soon();
  }

  /** Shows a part of the time. The part stays within the total time. */
  see(from, to) {
    const all = this.all || 1;
    const length = Math.max(Math.min(to - from, all), all * 1e-9);
    from = Math.max(0, Math.min(from, all - length));
    this.view = { from, to: from + length };
    this.surface.soon();
    this.app.moved(this);
  }

  facts(at) {
    const pairs = [
      ["calls", format.count(this.calls[at])],
      ["total", format.time(this.total[at])],
      ["self", format.time(this.self[at])],
      ["of all", format.share(this.total[at], this.all)],
    ];
    if (this.parent[at] >= 0) pairs.push(["of caller", format.share(this.total[at], this.total[this.parent[at]])]);
    if (this.unfinished[at]) pairs.push(["without exit", format.count(this.unfinished[at])]);
    return pairs;
  }

  told(at) {
    const content = [element("div", "name", this.name[at])];
    if (this.stacks[at]) {
      content.push(numbers([["calls", format.count(this.calls[at])], ["time", format.time(this.total[at])]]));
      content.push(element("p", "", "This page has no room for stacks with so little time."));
      return content;
    }
    content.push(numbers(this.facts(at)));
    content.push(...this.app.functionFacts(this.name[at]));
    return content;
  }
}
