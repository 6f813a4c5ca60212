// The table of functions, and the panel with the details of the selected function. Only the rows in
// view, and 4 rows on either side, are elements.

const ROW = 30;

const COLUMNS = [
  { key: "name", title: "Function" },
  { key: "calls", title: "Calls" },
  { key: "total", title: "Total" },
  { key: "self", title: "Self" },
  { key: "min", title: "Min" },
  { key: "median", title: "Median" },
  { key: "p99", title: "p99" },
  { key: "max", title: "Max" },
  { key: "bars", title: "Durations" },
];

class FunctionList {
  constructor(box, table, app) {
    this.app = app;
    this.table = table;
    this.box = box;
    this.sorting = { key: "self", down: true };
    this.chosen = -1;
    this.head = element("div", "head");
    this.head.setAttribute("role", "row");
    this.rows = element("div", "rows");
    this.rows.setAttribute("role", "rowgroup");
    for (const { key, title } of COLUMNS) {
      const button = element("button", "", title);
      button.type = "button";
      button.dataset.key = key;
      button.setAttribute("role", "columnheader");
      button.disabled = key === "bars";
      button.addEventListener("click", () => this.sortBy(key));
      this.head.append(button);
    }
    box.append(this.head, this.rows);
    box.addEventListener("scroll", () => this.fill());
    new ResizeObserver(() => this.fill()).observe(box);
    // All histograms in the table have the same axis, so that the user can compare them.
    const all = table.barAt;
    this.axis = all.length ? { first: all.reduce((least, at) => Math.min(least, at)), last: max(all) } : null;
    this.sums = { total: max(table.total), self: sum(table.self) };
    this.arrange();
  }

  sortBy(key) {
    const { key: before, down } = this.sorting;
    // The first click on a column sorts names from A to Z and numbers from the greatest. Another
    // click reverses the order.
    this.sorting = { key, down: key === before ? !down : key !== "name" };
    this.arrange();
  }

  /** Selects the rows that match the search, sorts them, and updates the table. */
  arrange() {
    const { table } = this;
    const { key, down } = this.sorting;
    const wanted = this.app.query ? (row) => this.app.marks(table.name[row]) : () => true;
    this.order = Array.from({ length: table.length }, (_, row) => row).filter(wanted);
    const sign = down ? -1 : 1;
    const number = (row) => (Number.isNaN(table[key][row]) ? -1 : table[key][row]);
    if (key === "name") this.order.sort((one, other) => sign * table.name[one].localeCompare(table.name[other]) || one - other);
    else this.order.sort((one, other) => sign * (number(one) - number(other)) || one - other);
    for (const button of this.head.children) {
      if (button.dataset.key === key) button.setAttribute("aria-sort", down ? "descending" : "ascending");
      else button.removeAttribute("aria-sort");
      const { title } = COLUMNS.find((column) => column.key === button.dataset.key);
      button.textContent = button.dataset.key === key ? `${title} ${down ? "↓" : "↑"}` : title;
    }
    this.rows.style.height = `${this.order.length * ROW}px`;
    this.fill();
    const { functions, calls, self } = this.app.head.functionsLeftOut;
    const shown = this.app.query ? `${format.count(this.order.length)} of ${format.counted(table.length, "function")}` : "";
    const rest = functions ? `The table leaves out ${format.counted(functions, "more function")} with ${format.counted(calls, "call")} and ${format.time(self)} of self time.` : "";
    document.getElementById("table-says").textContent = [shown, rest].filter(Boolean).join(" · ");
  }

  fill() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 4);
    const last = Math.min(this.order.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + 4);
    const made = [];
    for (let at = first; at < last; at++) made.push(this.row(this.order[at], at));
    this.rows.replaceChildren(...made);
  }

  row(row, at) {
    const { table } = this;
    const made = element("div", "row");
    made.setAttribute("role", "row");
    made.setAttribute("aria-selected", String(row === this.chosen));
    made.dataset.row = row;
    made.style.top = `${at * ROW}px`;
    const swatch = element("i", "swatch");
    swatch.style.background = colours.of(table.name[row]);
    const name = element("span", "name", swatch, table.name[row]);
    name.title = table.name[row];
    const calls = element("span", "", format.count(table.calls[row]));
    if (table.unfinished[row]) calls.title = `${format.counted(table.unfinished[row], "call")} without an exit. ${table.unfinished[row] === 1 ? "It adds" : "They add"} no time.`;
    const share = (value, whole) => {
      const cell = element("span", "share", format.time(value));
      cell.style.setProperty("--share", `${whole > 0 ? (100 * value) / whole : 0}%`);
      cell.title = format.share(value, whole);
      return cell;
    };
    const times = ["min", "median", "p99", "max"].map((key) => element("span", "", format.time(table[key][row])));
    const cells = [name, calls, share(table.total[row], this.sums.total), share(table.self[row], this.sums.self), ...times, picture(table.spread(row), 120, 22, this.axis)];
    cells.forEach((cell) => cell.setAttribute("role", "cell"));
    made.append(...cells);
    made.addEventListener("click", () => this.choose(row));
    return made;
  }

  /** Selects a row and scrolls it into view. -1 clears the selection. */
  choose(row) {
    this.chosen = row;
    const at = this.order.indexOf(row);
    if (at >= 0) {
      const { scrollTop, clientHeight } = this.box;
      const top = at * ROW;
      if (top < scrollTop || top + 2 * ROW > scrollTop + clientHeight - 32) this.box.scrollTop = Math.max(0, top - clientHeight / 3);
    }
    this.fill();
    this.describe(row);
    this.app.chooseFunction(row < 0 ? null : this.table.name[row]);
  }

  // Methods that keys call.

  move(across, down) {
    if (!down || !this.order.length) return;
    const at = this.order.indexOf(this.chosen);
    this.choose(this.order[Math.max(0, Math.min(this.order.length - 1, at + Math.sign(down)))]);
  }

  next(steps) {
    this.move(0, steps);
  }

  zoom() {}

  showChosen() {}

  reset() {
    this.choose(-1);
  }

  /** Fills the panel beside the table with the details of a row. -1 hides the panel. */
  describe(row) {
    const panel = document.getElementById("details");
    panel.hidden = row < 0;
    if (row < 0) return;
    const { table, app } = this;
    const name = table.name[row];
    const where = [table.source[row], table.module[row]].filter(Boolean).join(" · ");
    const actions = element("div", "actions", action("Show in flame graph", () => app.showFunction(name, "flame")));
    if (app.timeline) actions.append(action("Show in timeline", () => app.showFunction(name, "timeline")));
    const facts = [
      ["calls", format.count(table.calls[row])],
      ["without exit", format.count(table.unfinished[row])],
      ["total", format.time(table.total[row])],
      ["self", format.time(table.self[row])],
      ["min", format.time(table.min[row])],
      ["mean", format.time(table.mean[row])],
      ["median", format.time(table.median[row])],
      ["p90", format.time(table.p90[row])],
      ["p99", format.time(table.p99[row])],
      ["p99.9", format.time(table.p999[row])],
      ["max", format.time(table.max[row])],
      ["sum", format.time(table.sum[row])],
    ];
    const parts = [element("h2", "", name), element("p", "where", where || "source unknown"), actions, element("h3", "", "Numbers"), numbers(facts)];
    const bars = table.spread(row);
    if (bars.length) {
      const axis = element("div", "axis", element("span", "", format.time(bars[0].from)), element("span", "", format.time(bars.at(-1).to)));
      parts.push(element("h3", "", "Durations of calls (each bar covers times about a fifth longer than the bar before)"), picture(bars, 348, 92), axis);
    }
    const longest = table.longestOf(row).map((call) => {
      const thread = app.timeline?.lines.threads[call.thread];
      const item = element("li", "", element("b", "", `${call.unfinished ? "≥ " : ""}${format.time(call.length)}`));
      const off = call.off ? `, ${format.time(call.off)} off CPU` : "";
      item.append(element("span", "", `at ${format.moment(call.start, 1000)}${thread ? `, ${thread.name || thread.tid}` : ""}${off}`));
      if (thread) item.append(action("Show", () => app.showCall({ ...call, end: call.start + call.length, row })));
      return item;
    });
    if (longest.length) parts.push(element("h3", "", "Longest calls"), element("ul", "", ...longest));
    const { callers, callees } = app.flame.neighbours(name);
    for (const [title, found] of [["Called by", callers], ["Calls", callees]]) {
      const whole = found.reduce((all, [, time]) => all + time, 0);
      const items = found.slice(0, 8).map(([other, time]) => {
        const known = table.rowsByName.get(other);
        const link = element(known ? "button" : "span", known ? "link" : "", other || "(no traced caller)");
        link.title = other;
        if (known) link.addEventListener("click", () => this.choose(known[0]));
        return element("li", "", link, element("b", "", format.time(time)), element("small", "", format.share(time, whole)));
      });
      if (found.length > 8) items.push(element("li", "", element("span", "", `and ${format.count(found.length - 8)} more`)));
      if (items.length) parts.push(element("h3", "", title), element("ul", "", ...items));
    }
    panel.replaceChildren(...parts);
    panel.scrollTop = 0;
  }
}

function action(title, act) {
  const button = element("button", "", title);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

/**
 * Returns a histogram of durations as an SVG image. The height of a bar is the square root of its
 * number of calls, relative to the highest bar. So a small number of long calls remains visible
 * beside a large number of short calls.
 */
function picture(bars, width, height, axis = null) {
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawing.setAttribute("class", "spread");
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.setAttribute("preserveAspectRatio", "none");
  if (!bars.length) return drawing;
  const first = axis ? axis.first : bars[0].at;
  const count = Math.max((axis ? axis.last : bars.at(-1).at) - first + 1, 12);
  const most = Math.sqrt(max(bars.map((bar) => bar.calls)));
  const wide = width / count;
  const path = bars.map(({ at, calls }) => {
    const high = Math.max(1.5, (Math.sqrt(calls) / most) * (height - 1));
    return `M${((at - first) * wide).toFixed(2)} ${height}v${(-high).toFixed(2)}h${Math.max(wide - 0.8, 0.6).toFixed(2)}v${high.toFixed(2)}z`;
  });
  const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
  shape.setAttribute("d", path.join(""));
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  title.textContent = bars.slice(0, 60).map(({ from, to, calls }) => `${format.time(from)} – ${format.time(to)}: ${format.count(calls)}`).join("\n");
  drawing.append(title, shape);
  return drawing;
}

function max(list) {
  return list.reduce((most, number) => Math.max(most, number), 0);
}

function sum(list) {
  return list.reduce((all, number) => all + number, 0);
}
