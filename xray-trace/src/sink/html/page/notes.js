// What there is to say of the trace: what is missing, what is not as it looks, and what the page leaves out.

/** The notes of the trace, and those that follow from the page itself. */
function allNotes(head) {
  const notes = [...(head.notes ?? [])];
  const say = (tone, text) => notes.push({ tone, text, span: null });
  if (head.kind === "profile") say("plain", "This is a profile: sums of calls by stack. It has no events, so there is no timeline.");
  if (head.part) say("plain", "This is a part of what was recorded: threads, functions or a time were selected.");
  if (head.lostUnplaced) say("warning", `Of ${format.counted(head.lostUnplaced, "lost event")} nobody knows when they were lost: no gap is drawn for them.`);
  const threads = head.threads ?? [];
  const summed = threads.reduce((all, thread) => all + (thread.summed ?? 0), 0);
  if (summed) {
    const how = head.served ? "zooming in shows them" : "xrayctl view shows them";
    say("plain", `The timeline sums ${format.counted(summed, "short call")} up, by slices of time; ${how}. Tables and flame graph count all calls.`);
  }
  const deep = threads.reduce((all, thread) => all + (thread.tooDeep ?? 0), 0);
  if (deep) say("plain", `${format.counted(deep, "call")} within more than 128 others ${deep === 1 ? "is" : "are"} not drawn in the timeline.`);
  if (head.otherThreads) say("plain", `${format.counted(head.otherThreads, "thread")} with fewer events are not drawn in the timeline.`);
  const { functions, calls } = head.functionsLeftOut;
  if (functions) say("plain", `The table leaves out ${format.counted(functions, "function")} with ${format.counted(calls, "call")}, those with the least time of their own.`);
  if (head.stacksTogether) say("warning", `There are too many different stacks: ${format.counted(head.stacksTogether, "call")} stand for [more stacks].`);
  if (head.namesLeftOut) say("warning", `Names are too long to be all in one page: they are missing in ${format.counted(head.namesLeftOut, "place")}.`);
  return notes;
}

/** Fills the pane. */
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
  if (important.length) parts.push(element("h2", "", "Missing, or not as it looks"), list(important));
  else parts.push(element("h2", "", "Nothing is missing"), element("ul", "", element("li", "", element("span", "", head.lost === 0 ? "No event was lost, and every call is whole." : "Nothing is known to be missing."))));
  if (others.length) parts.push(element("h2", "", "Good to know"), list(others));
  const gaps = (app.timeline?.lines.threads ?? []).flatMap((thread) => thread.gaps.map((gap) => ({ thread, gap })));
  if (gaps.length) {
    const rows = gaps.slice(0, 200).map(({ thread, gap }) => {
      const show = action("Show", () => app.showSpan([gap.start, gap.end]));
      const events = gap.events ? format.count(gap.events) : "unknown";
      const cells = [thread.name || String(thread.tid), format.moment(gap.end, 1000), format.count(gap.losses), events];
      return element("tr", "", ...cells.map((text) => element("td", "", text)), element("td", "", show));
    });
    const head = element("tr", "", ...["Thread", "Noticed at", "Losses", "Events", ""].map((text) => element("th", "", text)));
    parts.push(element("h2", "", gaps.length > 200 ? `Losses: the first 200 of ${format.count(gaps.length)}` : "Losses"), element("table", "", head, ...rows));
  }
  box.replaceChildren(...parts);
  return important;
}
