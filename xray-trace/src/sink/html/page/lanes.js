// The times of calls. Each thread has one lane for each depth. A lane has single calls, and slices
// of time that sum up shorter calls. The calls of a lane do not overlap, so both their begins and
// their ends are in ascending order.

class Lines {
  constructor(tables) {
    this.threads = tables.head.threads.map((head, number) => ({ ...head, number, lanes: [], gaps: [], slice: 2 ** (head.power ?? 0) }));
    offCpuOf(tables, this.threads.length).forEach((off, number) => (this.threads[number].off = off));
    const column = (name) => tables.column(name);
    const [threads, depths] = [column("lane.thread"), column("lane.depth")];
    const [counts, sliceCounts] = [column("lane.calls"), column("lane.slices")];
    const [start, end, what] = [column("call.gap"), column("call.len"), column("call.what")];
    const [off, ready, goOn] = [column("call.off"), column("call.ready"), column("lane.goes_on")];
    const goesOn = new Float64Array(goOn.length ? start.length : 0);
    const [at, summed, busy, sliceWhat] = [column("slice.step"), column("slice.calls"), column("slice.busy"), column("slice.what")];
    let [call, slice] = [0, 0];
    for (let lane = 0; lane < threads.length; lane++) {
      const [first, firstSlice] = [call, slice];
      let before = 0;
      const lengths = sums(end, first, first + counts[lane]);
      for (; call < first + counts[lane]; call++) {
        // The loop replaces the gaps and the lengths by begins and ends.
        start[call] += before;
        end[call] += start[call];
        before = end[call];
      }
      if (goOn[lane]) goesOn[call - 1] = 1;
      before = 0;
      for (; slice < firstSlice + sliceCounts[lane]; slice++) {
        at[slice] += before;
        before = at[slice];
      }
      this.threads[threads[lane]].lanes.push({
        depth: depths[lane],
        start: start.subarray(first, call),
        end: end.subarray(first, call),
        what: what.subarray(first, call),
        /** The times of the calls without a processor + 1, or 0; empty if no time is known. */
        off: off.subarray(first, call),
        ready: ready.subarray(first, call),
        /** 1 for a call that goes on after the lines, else 0; empty if no call goes on. */
        goesOn: goesOn.subarray(first, call),
        /**
         * For each call, the sum of the durations of the calls before it in the lane. The last
         * entry is the sum of all calls.
         */
        before: lengths,
        slices: {
          at: at.subarray(firstSlice, slice),
          calls: summed.subarray(firstSlice, slice),
          busy: busy.subarray(firstSlice, slice),
          what: sliceWhat.subarray(firstSlice, slice),
          before: sums(summed, firstSlice, slice),
        },
      });
    }
    const [gapThread, gapStart, gapLength, gapEvents, gapLosses] = ["thread", "start", "len", "events", "losses"].map((name) => column(`gap.${name}`));
    gapThread.forEach((thread, gap) => {
      const begin = gapStart[gap];
      this.threads[thread].gaps.push({ start: begin, end: begin + gapLength[gap], events: gapEvents[gap], losses: gapLosses[gap] });
    });
    for (const thread of this.threads) thread.deepest = thread.lanes.reduce((most, lane) => Math.max(most, lane.depth), 0);
  }

  lane(thread, depth) {
    return this.threads[thread]?.lanes.find((lane) => lane.depth === depth);
  }

  /**
   * Completes the lines of a range of time with `whole`, the lines of all of the time. These have
   * the ends of long calls that are open at the end of the range. A thread without a call in the
   * range has no lanes.
   */
  complete(whole, from, to) {
    whole.threads.forEach((known, number) => {
      const thread = this.threads[number];
      for (const lane of known.lanes) {
        for (const time of [from, to]) {
          const at = firstAbove(lane.end, time);
          // Only a call that is open at this moment reaches beyond it.
          if (lane.start[at] <= time) putCall(thread, lane, at);
        }
      }
    });
  }

  /** Returns the number of times without a processor that the lines leave out. */
  get offLeftOut() {
    return this.threads.reduce((all, thread) => all + (thread.offLeftOut ?? 0), 0);
  }

  /**
   * Returns the number of calls in the slices that overlap a range of time, and an upper limit of
   * their durations. All of these calls are shorter than the limit, which is in nanoseconds.
   */
  summed(from, to) {
    let [calls, below] = [0, 0];
    for (const thread of this.threads) {
      const before = calls;
      for (const { slices } of thread.lanes) {
        const first = firstAbove(slices.at, from / thread.slice - 1);
        const last = firstAbove(slices.at, to / thread.slice);
        calls += slices.before[last] - slices.before[first];
      }
      if (calls > before) below = Math.max(below, thread.keptFrom ?? 0);
    }
    return { calls, below };
  }
}

/** The columns with a number for each call of a lane. */
const CALL_COLUMNS = ["start", "end", "what", "off", "ready", "goesOn"];

/** Puts a call of `lane` into the same lane of a thread, in place of a call with the same begin. */
function putCall(thread, lane, number) {
  let own = thread.lanes.find(({ depth }) => depth === lane.depth);
  if (!own) {
    const none = new Float64Array(0);
    own = { depth: lane.depth, slices: { at: none, calls: none, busy: none, what: none, before: sums(none, 0, 0) } };
    for (const column of CALL_COLUMNS) own[column] = none;
    thread.lanes.push(own);
  }
  const count = own.start.length;
  const after = firstAbove(own.start, lane.start[number]);
  const before = own.start[after - 1] === lane.start[number] ? after - 1 : after;
  for (const column of CALL_COLUMNS) {
    // A column that the document does not have is empty.
    const old = own[column].length ? own[column] : new Float64Array(count);
    const made = new Float64Array(before + 1 + count - after);
    made.set(old.subarray(0, before));
    made[before] = lane[column][number] ?? 0;
    made.set(old.subarray(after), before + 1);
    own[column] = made;
  }
  own.before = sums(own.end.map((end, at) => end - own.start[at]), 0, own.start.length);
}

function sums(numbers, from, to) {
  const before = new Float64Array(to - from + 1);
  for (let at = from; at < to; at++) before[at - from + 1] = before[at - from] + numbers[at];
  return before;
}

/** Returns the call of a lane with this index. */
function callOf(thread, lane, number) {
  return {
    thread: thread.number,
    depth: lane.depth,
    start: lane.start[number],
    end: lane.end[number],
    row: Math.floor(lane.what[number] / 2) - 1,
    unfinished: lane.what[number] % 2 === 1,
    /** The call is open at the end of its lines, and may have an exit later. */
    goesOn: lane.goesOn[number] === 1,
    off: lane.off[number] ? lane.off[number] - 1 : NaN,
    ready: lane.ready[number] ?? 0,
    number,
  };
}
