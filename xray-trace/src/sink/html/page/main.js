// Connects the views: tabs, search, keys, theme. `window.xrayReport` gives access to the page from
// the browser's console.

const PANES = ["flame", "timeline", "functions", "notes"];

class App {
  constructor(tables) {
    this.head = tables.head;
    format.calibrated = this.head.calibrated;
    this.table = new FunctionTable(tables);
    this.query = "";
    this.pattern = null;
    this.function = null;
    this.marked = new Map();
    this.notes = allNotes(this.head);
    colours.refresh();
    this.showHead();
    this.flame = new Flame(byId("flame"), tables, this);
    this.timeline = this.head.kind === "trace" ? new Timeline(byId("timeline"), tables, this) : null;
    this.functions = new FunctionList(byId("table"), this.table, this);
    byId("timeline").hidden = !this.timeline;
    byId("timeline-none").hidden = !!this.timeline;
    byId("timeline-reset").hidden = !this.timeline;
    const important = showNotes(byId("notes"), this.head, this.notes, this);
    byId("notes-count").textContent = important.length || "";
    byId("notes-count").classList.toggle("bad", important.some((note) => note.tone === "bad"));
    this.moved(this.flame);
    this.listen();
    this.open(PANES.includes(location.hash.slice(1)) ? location.hash.slice(1) : "flame");
  }

  showHead() {
    const { file, program, kind, events, lost, span, allThreads, started } = this.head;
    document.title = `${file} – xrayctl`;
    byId("file").textContent = file;
    byId("file").title = file;
    // If a log does not contain its date, `started` counts from 1970 and is below this limit.
    const when = started > 1e18 ? ` · ${new Date(started / 1e6).toLocaleString()}` : "";
    byId("program").textContent = `${program || "unknown program"}${when}`;
    const facts = kind === "trace" ? [["span", format.time(span)], ["events", format.count(events)]] : [["calls", format.count(sum(this.table.calls))]];
    facts.push(["threads", format.count(allThreads)], ["functions", format.count(this.table.length + this.head.functionsLeftOut.functions)], ["lost", format.count(lost)]);
    for (const [what, number] of facts) {
      byId("facts").append(element("div", what === "lost" && lost ? "bad" : "", element("dt", "", what), element("dd", "", number)));
    }
  }

  // Marking. Views mark the functions that a search finds. Without a search, they mark the selected
  // function.

  marking() {
    return this.pattern !== null || this.function !== null;
  }

  marks(name) {
    let marked = this.marked.get(name);
    if (marked === undefined) {
      marked = this.pattern ? this.pattern(name) : name === this.function;
      this.marked.set(name, marked);
    }
    return marked;
  }

  search(query) {
    this.query = query;
    this.marked.clear();
    const found = byId("found");
    found.textContent = "";
    try {
      this.pattern = query ? matcher(query) : null;
    } catch (error) {
      this.pattern = () => false;
      found.textContent = "not a regular expression";
    }
    if (this.pattern && !found.textContent) {
      const functions = this.table.name.filter((name) => this.marks(name)).length;
      const { time, all } = this.flame.markedShare();
      found.textContent = functions || time ? `${format.counted(functions, "function")}, ${format.share(time, all)} of time` : "nothing found";
    }
    this.functions.arrange();
    this.redraw();
  }

  redraw() {
    this.flame.surface.soon();
    this.timeline?.surface.soon();
  }

  /** Selects the function that views mark without a search. `null` selects none. */
  chooseFunction(name) {
    this.function = name;
    this.marked.clear();
    this.redraw();
  }

  // Methods that the views call.

  /** Shows the selection of a drawing in the bar below the drawing. `null` clears the bar. */
  choose(chosen) {
    const bar = byId("chosen");
    bar.replaceChildren();
    if (!chosen) return;
    bar.append(element("span", "name", chosen.name));
    for (const [what, number] of chosen.facts) bar.append(element("span", "", `${what} `, element("b", "", number)));
    if (chosen.warning) bar.append(element("span", "warning", chosen.warning));
    const rows = this.table.rowsByName.get(chosen.name);
    if (rows && !chosen.plain) bar.append(action("Show in table", () => this.showRow(rows[0])));
  }

  moved(view) {
    if (view !== this.flame || !this.flame) return;
    const { from, to } = view.view;
    const whole = to - from >= view.all * 0.999999;
    const says = [element("b", "", format.time(view.all)), " in all threads"];
    if (!whole) says.push(` · in view: ${format.time(to - from)}, ${format.share(to - from, view.all)}`);
    byId("flame-says").replaceChildren(...says);
  }

  /**
   * Returns the elements that describe a function in a tooltip: its numbers in the table, its
   * source and its module. If several functions have the name, returns only their number.
   */
  functionFacts(name) {
    const rows = this.table.rowsByName.get(name);
    if (rows?.length !== 1) return rows ? [element("p", "", `${format.count(rows.length)} functions have this name`)] : [];
    const [row] = rows;
    const { table } = this;
    const facts = element("p", "", "All calls of this function:");
    const pairs = ["calls", "total", "self", "min", "median", "p99", "max"].map((key) => [key, key === "calls" ? format.count(table.calls[row]) : format.time(table[key][row])]);
    const where = [table.source[row], table.module[row]].filter(Boolean).join(" · ");
    return [facts, numbers(pairs), ...(where ? [element("p", "where", where)] : [])];
  }

  // Methods that switch to another view and show a function, a call, a row or a time span there.

  showFunction(name, pane) {
    this.clearSearch();
    this.open(pane);
    this.chooseFunction(name);
    if (pane === "flame") {
      this.flame.chosen = -1;
      this.flame.see(0, this.flame.all || 1);
      this.flame.next(1);
      this.flame.see(0, this.flame.all || 1);
    } else {
      const [longest] = this.table.longestOf(this.table.rowsByName.get(name)[0]);
      if (longest && longest.thread >= 0) this.showCall({ ...longest, end: longest.start + longest.length, row: this.table.rowsByName.get(name)[0] });
    }
  }

  showCall(call) {
    this.open("timeline");
    this.timeline.choose(call);
    this.timeline.show(call);
  }

  showRow(row) {
    this.clearSearch();
    this.open("functions");
    this.functions.choose(row);
  }

  showSpan([from, to]) {
    this.open("timeline");
    const length = Math.max(to - from, 100);
    this.timeline.see(from - length, to + length);
  }

  clearSearch() {
    byId("query").value = "";
    this.search("");
  }

  // Tabs, keys and theme.

  open(pane) {
    this.pane = pane;
    for (const name of PANES) {
      byId(`pane-${name}`).hidden = name !== pane;
      byId(`tab-${name}`).setAttribute("aria-selected", String(name === pane));
      byId(`tab-${name}`).tabIndex = name === pane ? 0 : -1;
    }
    byId("chosen").hidden = pane !== "flame" && !(pane === "timeline" && this.timeline);
    byId("chosen").replaceChildren();
    tip.hide();
    this.view?.surface?.resize();
    if (location.hash.slice(1) !== pane) history.replaceState(null, "", `#${pane}`);
  }

  get view() {
    return { flame: this.flame, timeline: this.timeline, functions: this.functions }[this.pane] ?? null;
  }

  listen() {
    for (const name of PANES) byId(`tab-${name}`).addEventListener("click", () => this.open(name));
    byId("query").addEventListener("input", (event) => this.search(event.target.value));
    byId("query").addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.clearSearch();
        event.target.blur();
      } else if (event.key === "Enter") {
        event.target.blur();
        this.view?.next(1);
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
    byId("flame-reset").addEventListener("click", () => this.flame.reset());
    byId("timeline-reset").addEventListener("click", () => this.timeline?.reset());
    byId("as-flame").addEventListener("click", () => this.turn(false));
    byId("as-icicle").addEventListener("click", () => this.turn(true));
    byId("help").addEventListener("click", () => byId("keys").showModal());
    byId("theme").addEventListener("click", () => this.nextTheme());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    document.addEventListener("keydown", (event) => this.key(event));
    if (this.head.served && this.head.kind === "trace") {
      byId("perfetto").hidden = false;
      byId("perfetto").addEventListener("click", () => handOver(this.head.file));
    }
  }

  turn(icicle) {
    this.flame.turn(icicle);
    byId("as-flame").setAttribute("aria-pressed", String(!icicle));
    byId("as-icicle").setAttribute("aria-pressed", String(icicle));
  }

  nextTheme() {
    const root = document.documentElement;
    const themes = ["", "light", "dark"];
    const next = themes[(themes.indexOf(root.dataset.theme ?? "") + 1) % themes.length];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    byId("theme").textContent = { "": "Theme", light: "Light", dark: "Dark" }[next];
    this.recolour();
  }

  recolour() {
    colours.refresh();
    this.redraw();
    this.functions.fill();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea") || byId("keys").open) return;
    const view = this.view;
    const step = 80;
    const acts = {
      "/": () => {
        byId("query").focus();
        byId("query").select();
      },
      "?": () => byId("keys").showModal(),
      w: () => view?.zoom(1 / 1.5),
      "+": () => view?.zoom(1 / 1.5),
      "=": () => view?.zoom(1 / 1.5),
      s: () => view?.zoom(1.5),
      "-": () => view?.zoom(1.5),
      a: () => view?.move(-step, 0),
      d: () => view?.move(step, 0),
      ArrowLeft: () => view?.move(-step, 0),
      ArrowRight: () => view?.move(step, 0),
      ArrowUp: () => view?.move(0, -step),
      ArrowDown: () => view?.move(0, step),
      f: () => view?.showChosen(),
      n: () => view?.next(1),
      p: () => view?.next(-1),
      i: () => this.turn(!this.flame.icicle),
      t: () => this.nextTheme(),
      0: () => view?.reset(),
      Escape: () => view?.reset(),
    };
    PANES.forEach((pane, at) => (acts[at + 1] = () => this.open(pane)));
    // Enter and Space press the focused button. The left and right arrow keys open the tab beside
    // the focused one.
    if (event.target.matches("button, summary") && ["Enter", " "].includes(event.key)) return;
    if (event.target.matches("[role=tab]") && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
      const at = PANES.indexOf(this.pane) + (event.key === "ArrowRight" ? 1 : -1);
      this.open(PANES[(at + PANES.length) % PANES.length]);
      byId(`tab-${this.pane}`).focus();
      event.preventDefault();
      return;
    }
    const act = event.key === "Enter" ? acts.f : acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    tip.hide();
    act();
  }
}

/**
 * Returns a function that tests whether a name matches a query. A query between slashes is a
 * regular expression. Any other query matches names that contain it. Both ignore case.
 */
function matcher(query) {
  const expression = query.length > 2 && query.startsWith("/") && query.endsWith("/") ? new RegExp(query.slice(1, -1), "i") : null;
  if (expression) return (name) => expression.test(name);
  const part = query.toLowerCase();
  return (name) => name.toLowerCase().includes(part);
}

/**
 * Opens Perfetto's page and sends it the trace, which this page's server converts. The trace is
 * sent only after Perfetto's page has answered, and only to that page. Perfetto's page keeps the
 * trace in the browser.
 * (https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui)
 */
async function handOver(title) {
  const THERE = "https://ui.perfetto.dev";
  const button = byId("perfetto");
  const other = window.open(THERE);
  const say = (text) => (button.textContent = text);
  if (!other) {
    say("The browser did not open a window");
    return;
  }
  button.disabled = true;
  try {
    say("Converting…");
    const answer = await fetch("trace.pftrace", { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const buffer = await answer.arrayBuffer();
    say("Waiting for Perfetto…");
    await new Promise((resolve, reject) => {
      const calling = setInterval(() => other.postMessage("PING", THERE), 100);
      const end = (act) => (value) => {
        clearInterval(calling);
        clearTimeout(patience);
        window.removeEventListener("message", hear);
        act(value);
      };
      const patience = setTimeout(() => end(reject)(new Error("no answer for 60 seconds")), 60_000);
      const hear = (event) => {
        if (event.origin === THERE && event.source === other && event.data === "PONG") end(resolve)();
      };
      window.addEventListener("message", hear);
    });
    other.postMessage({ perfetto: { buffer, title } }, THERE);
    say("Open in Perfetto");
  } catch (error) {
    say(`Perfetto: ${error.message}`);
  }
  button.disabled = false;
}

function byId(id) {
  return document.getElementById(id);
}

embedded()
  .then((tables) => (window.xrayReport = new App(tables)))
  .catch((error) => {
    byId("program").textContent = `Cannot show this report: ${error.message}`;
    throw error;
  });
