//! What would have helped a recording that has lost events. `record` prints it.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use serde::Serialize;
use xray_trace::model::{EventBody, FunctionId, Trace};
use xrayd::ByteSize;

use super::{Look, Tone, text};

/// Functions that are named.
const NAMED: usize = 3;
/// Blocks that are read to find these functions. A block has some thousands of events.
const BLOCKS: usize = 256;
/// A larger ring holds so many times what was in the one that was full.
const LARGER: u64 = 4;
/// Larger rings are not proposed beyond this size: each thread has one.
const LARGEST_RING: u64 = 64 << 20;
/// Threads that wait so long are not proposed to wait longer.
const LONG_WAIT: Duration = Duration::from_millis(100);
/// So many times as many threads have a ring, and the most that can.
const MORE: u32 = 4;
const MOST_THREADS: u32 = 65_536;

/// The functions that made most of the events, found in a sample of the blocks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct FrequentFunctions {
    /// Their names, the most frequent function first.
    functions: Vec<String>,
    /// The share of their events in the sample, from 0 to 1.
    share: f64,
}

/// What is known of the losses of a recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Remedies {
    /// Events that were read in time, but not received in time by this process.
    pub(crate) unreceived: u64,
    /// True if all rings were taken at the end: a further thread would have had none.
    pub(crate) rings_taken: bool,
    /// Absent if the trace was not read back.
    pub(crate) frequent: Option<FrequentFunctions>,
    /// Size of each ring; absent if it is not known.
    pub(crate) ring_bytes: Option<u64>,
    /// Threads that can have a ring at the same time; absent if it is not known.
    pub(crate) max_threads: Option<u32>,
    /// True if the recording had a limit on its cost.
    #[serde(skip)]
    pub(crate) is_limited: bool,
    /// The time for which threads waited for room; `None` if they did not wait.
    #[serde(skip)]
    pub(crate) waits: Option<Duration>,
    /// The process, if it runs on: what it does later can be recorded in another way.
    #[serde(skip)]
    pub(crate) running: Option<u32>,
}

// === impl FrequentFunctions ===

impl FrequentFunctions {
    /// `None` if the sample has no calls.
    pub(crate) fn of(trace: &Trace) -> Option<Self> {
        let blocks = trace.blocks();
        let step = blocks.len().div_ceil(BLOCKS).max(1);
        let mut events = HashMap::<FunctionId, u64>::new();
        for block in blocks.iter().step_by(step) {
            // A damaged block shows what it has before the damage.
            for event in block.events().map_while(Result::ok) {
                if let EventBody::Call { function, .. } = event.body {
                    *events.entry(function).or_default() += 1;
                }
            }
        }
        let all: u64 = events.values().sum();
        let mut events: Vec<_> = events.into_iter().collect();
        events.sort_by_key(|&(function, events)| (std::cmp::Reverse(events), function));
        events.truncate(NAMED);
        let some: u64 = events.iter().map(|(_, events)| events).sum();
        let name = |function| trace.function_name(function).into_owned();
        (all > 0).then(|| Self {
            functions: events.iter().map(|(function, _)| name(*function)).collect(),
            share: some as f64 / all as f64,
        })
    }

    /// Options that leave the functions out.
    fn options(&self) -> String {
        let options = self.functions.iter().map(|name| {
            let name = text::quoted(&text::printable(name));
            format!("--except-function {name}")
        });
        options.collect::<Vec<_>>().join(" ")
    }
}

// === impl Remedies ===

impl Remedies {
    /// Writes what would have helped, a line each. `events` were recorded, and `lost` were not.
    pub(crate) fn render(
        &self,
        out: &mut dyn io::Write,
        look: Look,
        (events, lost): (u64, u64),
    ) -> io::Result<()> {
        let mut lines = self.lines(events, lost).into_iter();
        if let Some(head) = lines.next() {
            writeln!(out, "{}", look.paint(Tone::Bad, &head))?;
        }
        lines.try_for_each(|line| writeln!(out, "{line}"))
    }

    /// The losses, and then each remedy, indented.
    pub(crate) fn lines(&self, events: u64, lost: u64) -> Vec<String> {
        let share = 100.0 * lost as f64 / events.saturating_add(lost).max(1) as f64;
        // The cause of most losses.
        let is_late = self.unreceived > lost / 2;
        let lacks_rings = !is_late && self.rings_taken;
        let why = if is_late {
            "xrayctl did not receive them as fast as the daemon read them"
        } else if lacks_rings {
            "a ring was full, or threads had none, because all rings were taken"
        } else {
            "a ring was full, because the program was faster than its reader"
        };
        let mut lines = vec![format!(
            "{share:.1}% of the events were lost: {why}. What helps:"
        )];
        let threads = self.max_threads.filter(|_| lacks_rings);
        if let Some(more) = threads.map(|threads| threads.saturating_mul(MORE)) {
            let more = more.min(MOST_THREADS);
            lines.push(format!("  rings for more threads: --max-threads {more}"));
        }
        if let Some(frequent) = &self.frequent {
            let share = 100.0 * frequent.share;
            lines.push(format!(
                "  without the functions that made {share:.0}% of the events: {}",
                frequent.options()
            ));
        }
        if !self.is_limited {
            lines.push(
                "  without functions that xrayd chooses by their cost: --max-overhead 5%"
                    .to_owned(),
            );
        }
        if !self.is_limited && !lacks_rings {
            let longer = match self.waits {
                None => Some("threads that wait for xrayd: --lossless"),
                Some(wait) if wait < LONG_WAIT => {
                    Some("threads that wait longer for xrayd: --lossless=100ms")
                }
                Some(_) => None,
            };
            lines.extend(longer.map(|longer| format!("  {longer}")));
        }
        let larger = self.ring_bytes.map(|bytes| bytes.saturating_mul(LARGER));
        if let Some(larger) = larger.filter(|larger| !is_late && *larger <= LARGEST_RING) {
            lines.push(format!(
                "  larger rings, if the program is busy at times: --ring-size {}",
                ByteSize::new(larger)
            ));
        }
        if let Some(pid) = self.running {
            lines.push(format!(
                "  only the newest events, when they are wanted: xrayctl attach {pid} --all --mode flight, then xrayctl snapshot {pid}"
            ));
        }
        lines
    }
}

#[cfg(test)]
pub(in crate::output) mod tests {
    use super::*;

    pub(in crate::output) fn sample() -> Remedies {
        Remedies {
            unreceived: 0,
            rings_taken: false,
            max_threads: Some(1024),
            frequent: Some(FrequentFunctions {
                functions: vec!["sdslen".into(), "ns::find(int)".into()],
                share: 0.314,
            }),
            ring_bytes: Some(4 << 20),
            is_limited: false,
            waits: None,
            running: Some(812),
        }
    }

    #[test]
    fn only_what_can_help_is_proposed() {
        let lines = Remedies {
            unreceived: 60,
            is_limited: true,
            running: None,
            ..sample()
        }
        .lines(900, 100);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("10.0% of the events were lost: xrayctl did not"));
        let ringless = Remedies {
            rings_taken: true,
            running: None,
            ..sample()
        }
        .lines(900, 100);
        let expected = "  rings for more threads: --max-threads 4096";
        assert!(ringless[0].contains("threads had none"), "{ringless:?}");
        assert_eq!((ringless[1].as_str(), ringless.len()), (expected, 5));
        let none = Remedies {
            frequent: None,
            ring_bytes: Some(LARGEST_RING),
            ..sample()
        };
        assert_eq!(none.lines(0, 1).len(), 4);
        let waits = |wait| Remedies {
            waits: Some(Duration::from_millis(wait)),
            ..sample()
        };
        let longer = waits(10).lines(900, 100);
        assert!(
            longer.contains(&"  threads that wait longer for xrayd: --lossless=100ms".to_owned())
        );
        assert_eq!(waits(100).lines(900, 100).len(), longer.len() - 1);
    }
}
