// The notes. They list missing data, data that differs from its appearance, and the parts that the
// page leaves out.

/** Returns the notes of the trace and the notes about the page itself. */
function allNotes(head) {
  const notes = [...(head.notes ?? [])];
  const say = (tone, text) => notes.push({ tone, text, span: null });
  if (head.kind === "profile") say("plain", "This is a profile: it has sums of calls by stack. It has no events, so there is no timeline.");
  if (head.part) say("plain", "This page shows a part of the recording: threads, functions or a window of time are selected.");
  if (head.lostUnplaced) say("warning", `The time of ${format.counted(head.lostUnplaced, "lost event")} is unknown. The timeline has no gap for ${head.lostUnplaced === 1 ? "it" : "them"}.`);
  const threads = head.threads ?? [];
  const summed = threads.reduce((all, thread) => all + (thread.summed ?? 0), 0);
  if (summed) {
    const how = head.served ? "Zoom in to see single calls." : "xrayctl view shows single calls.";
    say("plain", `The timeline sums up ${format.counted(summed, "short call")} by slices of time. ${how} The table and the flame graph count all calls.`);
  }
  const deep = threads.reduce((all, thread) => all + (thread.tooDeep ?? 0), 0);
  if (deep) say("plain", `The timeline leaves out ${format.counted(deep, "call")} within more than 128 other calls.`);
  const off = threads.reduce((all, thread) => all + (thread.offLeftOut ?? 0), 0);
  if (off) {
    const below = threads.reduce((most, thread) => Math.max(most, thread.offKeptFrom ?? 0), 0);
    const how = head.served ? " Zoom in to see them." : " xrayctl view shows them.";
    say("plain", `The timeline does not show ${format.counted(off, "time")} without a processor, shorter than ${format.time(below)}.${how} The times on and off the CPU of single calls count them.`);
  }
  if (head.otherThreads) say("plain", `The timeline leaves out ${format.counted(head.otherThreads, "thread")} with the fewest events.`);
  const { functions, calls } = head.functionsLeftOut;
  if (functions) say("plain", `The table leaves out the ${format.counted(functions, "function")} with the least self time, with ${format.counted(calls, "call")}.`);
  if (head.stacksTogether) say("warning", `There are too many different stacks. The frames [more stacks] stand for ${format.counted(head.stacksTogether, "call")}.`);
  if (head.namesLeftOut) say("warning", `The names are too long for one page. They are missing in ${format.counted(head.namesLeftOut, "place")}.`);
  return notes;
}

/** Fills the pane, and returns the notes whose tone is not `plain`. */
function showNotes(box, head, notes, app) {
  const parts = [];
  const important = notes.filter((note) => note.tone !== "plain");
  const others = notes.filter((note) => note.tone === "plain");
  const list = (some) =>
    element("ul", "", ...some.map((note) => {
      const item = element("li", note.tone === "plain" ? "" : note.tone, element("span", "", note.text));
      if (note.span && app.timeline) item.append(action("Show", () => app.showSpan(note.span)));
      return item;
    }));
  if (important.length) parts.push(element("h2", "", "Missing or misleading"), list(important));
  else parts.push(element("h2", "", "Nothing is missing"), element("ul", "", element("li", "", element("span", "", head.lost === 0 ? "No event was lost, and every call is complete." : "No missing data is known."))));
  if (others.length) parts.push(element("h2", "", "Other notes"), list(others));
  const gaps = (app.timeline?.lines.threads ?? []).flatMap((thread) => thread.gaps.map((gap) => ({ thread, gap })));
  if (gaps.length) {
    const rows = gaps.slice(0, 200).map(({ thread, gap }) => {
      const show = action("Show", () => app.showSpan([gap.start, gap.end]));
      const events = gap.events ? format.count(gap.events) : "unknown";
      const cells = [thread.name || String(thread.tid), format.moment(gap.end, 1000), format.count(gap.losses), events];
      return element("tr", "", ...cells.map((text) => element("td", "", text)), element("td", "", show));
    });
    const head = element("tr", "", ...["Thread", "Detected at", "Losses", "Events", ""].map((text) => element("th", "", text)));
    parts.push(element("h2", "", gaps.length > 200 ? `Losses: the first 200 of ${format.count(gaps.length)}` : "Losses"), element("table", "", head, ...rows));
  }
  box.replaceChildren(...parts);
  return important;
}
