//! Samples of probes as calls. Samples of several processors are not in order, so all of them are
//! kept until the end of the file.

use std::collections::{BTreeMap, HashMap};
use std::io;

use super::file::Sample;
use crate::model::{CallKind, FunctionId, ProcessId, ThreadId, Trace, Values};
use crate::source::OpenError;
use crate::source::builder::{Body, TraceBuilder};
use crate::source::damage::Damage;
use crate::source::ids::next_id;

/// The end of the name that `perf probe` gives to the event of a return.
const RETURN: &str = "__return";

/// Collects calls.
#[derive(Debug)]
pub(super) struct Calls {
    builder: TraceBuilder,
    /// What each event is; `None` for events that are no calls.
    meanings: Vec<Option<Meaning>>,
    samples: Vec<Sample>,
    /// The latest names of threads, by pid and tid.
    names: BTreeMap<(u32, u32), String>,
    others: u64,
    lost: u64,
    lost_samples: u64,
    compressed: u64,
}

/// A call's begin or end.
#[derive(Debug, Clone, Copy)]
struct Meaning {
    function: FunctionId,
    kind: CallKind,
}

/// A thread of the trace.
#[derive(Debug, Clone, Copy)]
struct Known {
    thread: ThreadId,
    cpu: Option<u32>,
}

// === impl Calls ===

impl Calls {
    /// `names` are the names of the events.
    ///
    /// # Errors
    ///
    /// No function has events for both its entry and its return.
    pub(super) fn new(names: &[String]) -> Result<Self, OpenError> {
        let mut builder = TraceBuilder::new()?;
        // Functions are the same in all processes.
        let process = ProcessId(0);
        let mut modules = HashMap::new();
        let mut meanings = vec![None; names.len()];
        let mut functions = 0;
        let places: HashMap<&str, usize> =
            (0..).zip(names).map(|(at, name)| (&**name, at)).collect();
        for (at, name) in names.iter().enumerate() {
            let Some(exit) = places.get(format!("{name}{RETURN}").as_str()) else {
                continue;
            };
            let (group, name) = name.split_once(':').unwrap_or(("", name));
            let group = group.strip_prefix("probe_").unwrap_or(group);
            let module = match modules.get(group) {
                Some(known) => *known,
                None => {
                    let id = builder.module(process, group)?;
                    modules.insert(group, id);
                    id
                }
            };
            let function = FunctionId(next_id(functions)?);
            functions += 1;
            builder.function(function, module, name);
            for (at, kind) in [(at, CallKind::Enter), (*exit, CallKind::Exit)] {
                if let Some(meaning) = meanings.get_mut(at) {
                    *meaning = Some(Meaning { function, kind });
                }
            }
        }
        if functions == 0 {
            return Err(OpenError::PerfCalls);
        }
        Ok(Self {
            builder,
            meanings,
            samples: Vec::new(),
            names: BTreeMap::new(),
            others: 0,
            lost: 0,
            lost_samples: 0,
            compressed: 0,
        })
    }

    pub(super) fn sample(&mut self, sample: &Sample) -> io::Result<()> {
        match self.meanings.get(sample.event) {
            Some(Some(_)) => self.samples.push(*sample),
            _ => self.others += 1,
        }
        Ok(())
    }

    pub(super) fn name(&mut self, pid: u32, tid: u32, name: &str) {
        self.names.insert((pid, tid), name.to_owned());
    }

    pub(super) fn lost(&mut self, events: u64) {
        self.lost = self.lost.saturating_add(events);
    }

    pub(super) fn lost_samples(&mut self, events: u64) {
        self.lost_samples = self.lost_samples.saturating_add(events);
    }

    pub(super) fn compressed(&mut self) {
        self.compressed += 1;
    }

    /// The trace, and the counts of data that was not kept.
    pub(super) fn finish(
        mut self,
        damage: Damage,
    ) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
        // Stable: samples of a thread within a nanosecond keep their order.
        self.samples.sort_by_key(|sample| sample.time);
        let mut processes: HashMap<u32, ProcessId> = HashMap::new();
        let mut threads: HashMap<(u32, u32), Known> = HashMap::new();
        // A thread without a name of its own gets the name of its process.
        let name = |pid, tid| {
            let own = self.names.get(&(pid, tid));
            own.or_else(|| self.names.get(&(pid, pid)))
                .map_or("", String::as_str)
        };
        for Sample {
            event,
            pid,
            tid,
            time,
            cpu,
        } in self.samples
        {
            let Some(Some(Meaning { function, kind })) = self.meanings.get(event) else {
                continue;
            };
            let process = match processes.get(&pid) {
                Some(known) => *known,
                None => {
                    let id = self.builder.process(pid, name(pid, pid))?;
                    processes.insert(pid, id);
                    id
                }
            };
            let known = match threads.get_mut(&(pid, tid)) {
                Some(known) => known,
                None => {
                    let thread = self.builder.thread(process, tid, name(pid, tid))?;
                    let known = Known { thread, cpu: None };
                    threads.entry((pid, tid)).or_insert(known)
                }
            };
            if known.cpu != cpu
                && let Some(cpu) = cpu.and_then(|cpu| u16::try_from(cpu).ok())
            {
                self.builder.push(known.thread, time, Body::Cpu(cpu))?;
            }
            known.cpu = cpu;
            let call = Body::Call {
                function: *function,
                kind: *kind,
                values: Values::default(),
            };
            self.builder.push(known.thread, time, call)?;
        }
        self.builder.lost(self.lost.max(self.lost_samples));
        let (trace, kept) = self.builder.finish()?;
        let mut notes = damage.into_list();
        notes.extend(kept);
        let own = [
            ("samples that are no calls", self.others),
            (
                "compressed parts, which are left out; record without --compression-level",
                self.compressed,
            ),
        ];
        let own = own.into_iter().filter(|(_, count)| *count > 0);
        notes.extend(own.map(|(what, count)| (what.to_owned(), count)));
        Ok((trace, notes))
    }
}
