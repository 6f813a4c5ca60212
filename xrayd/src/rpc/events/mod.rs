//! Live subscriptions as batches of decoded events: items of a subscription in, messages out. There
//! is no I/O here, and no waiting.
//!
//! The blocks of one call are merged by time. Between calls, the order is that of the drain.

use std::collections::{HashMap, HashSet};

use xray_trace::{
    container::Block,
    model::{
        CallKind, Clock, ClockAnchor, DataKind, EventBody, EventType, FunctionId, Thread, ThreadId,
        Ticks, Values,
    },
};
use xrayd_proto::v1;

use crate::store::Source;

/// Limit on events in one message.
const MAX_EVENTS: usize = 4096;
/// Size of user event data after which a message ends, in bytes. Clients accept messages of 4 MiB
/// by default.
const MAX_USER_DATA: usize = 1 << 20;

/// Clock anchors that are kept. Events of a live stream are close to the latest ones.
const MAX_ANCHORS: usize = 16;

/// Threads whose kernel ids are kept. Threads without events are dropped first.
const MAX_THREADS: usize = 1 << 16;

/// Names that are not in the subscription.
pub(super) trait Names {
    /// Name and module of a function. `None` for an id that the process does not have.
    fn function(&self, source: Source, id: FunctionId) -> Option<v1::FunctionName>;
}

/// One item of a subscription, without the parts that no batch needs.
#[derive(Debug)]
pub(super) enum Piece {
    /// A process. Later items of its source belong to it. `wanted` are its wanted functions, or all
    /// for `None`.
    Process {
        pid: u32,
        wanted: Option<HashSet<FunctionId>>,
    },
    Block(Block),
    Anchor(ClockAnchor),
    Thread(Thread),
    /// An item that makes no message.
    Nothing,
    /// The end of a process.
    Ended,
    EventType(EventType),
    /// Events that are not in the subscription because its reader was too slow.
    ReaderLost(u64),
}

/// Makes the batches.
#[derive(Debug)]
pub(super) struct EventBatcher<N> {
    names: N,
    /// The processes that have not ended.
    processes: HashMap<Source, KnownProcess>,
    /// The latest anchors in ascending order, and the clock that they make.
    anchors: Vec<ClockAnchor>,
    clock: Clock,
    threads: Threads,
}

#[derive(Debug)]
struct KnownProcess {
    pid: u32,
    /// The wanted functions. `None`: all functions.
    wanted: Option<HashSet<FunctionId>>,
    /// Functions whose names were sent. The number of the process's functions bounds it.
    named: HashSet<FunctionId>,
}

/// Kernel ids of threads.
#[derive(Debug, Default)]
struct Threads(HashMap<(Source, ThreadId), KnownThread>);

/// An event with its sort key and its source.
#[derive(Debug)]
struct Made {
    ticks: u64,
    source: Source,
    event: v1::Event,
}

#[derive(Debug)]
struct KnownThread {
    tid: u32,
    /// True if the thread had a block since room was made last.
    used: bool,
}

// === impl EventBatcher ===

impl<N: Names> EventBatcher<N> {
    pub(super) fn new(names: N, anchors: Vec<ClockAnchor>) -> Self {
        let mut batcher = Self {
            names,
            processes: HashMap::new(),
            anchors: Vec::new(),
            clock: Clock::default(),
            threads: Threads::default(),
        };
        anchors
            .into_iter()
            .for_each(|anchor| batcher.anchor(anchor));
        batcher
    }

    /// The names that the batcher was made with.
    pub(super) fn names(&mut self) -> &mut N {
        &mut self.names
    }

    /// The messages for these items. Items that concern no client make none.
    pub(super) fn batches(&mut self, pieces: Vec<(Source, Piece)>) -> Vec<v1::EventBatch> {
        let mut head = v1::EventBatch::default();
        let mut blocks = Vec::new();
        let mut ended = Vec::new();
        for (source, piece) in pieces {
            match piece {
                Piece::Process { pid, wanted } => {
                    let named = HashSet::new();
                    self.processes
                        .insert(source, KnownProcess { pid, wanted, named });
                }
                Piece::Nothing => {}
                Piece::Ended => ended.push(source),
                Piece::Block(block) => blocks.push((source, block)),
                Piece::Anchor(anchor) => self.anchor(anchor),
                Piece::Thread(Thread {
                    id,
                    process: _,
                    tid,
                    name,
                }) => {
                    self.threads.insert((source, id), tid);
                    let pid = self.pid(source);
                    head.threads.push(v1::ThreadName { tid, name, pid });
                }
                Piece::EventType(EventType {
                    process: _,
                    number,
                    name,
                }) => {
                    let (pid, r#type) = (self.pid(source), number.into());
                    head.event_types
                        .push(v1::EventTypeName { r#type, name, pid });
                }
                Piece::ReaderLost(events) => {
                    head.reader_lost = head.reader_lost.saturating_add(events);
                }
            }
        }
        let mut events = Vec::new();
        for (source, block) in &blocks {
            let lost = self.decode(*source, block, &mut events);
            head.target_lost = head.target_lost.saturating_add(lost);
        }
        // Stable: events of one thread within a tick keep their order.
        events.sort_by_key(|made| made.ticks);

        let of_none = [v1::EventKind::Unwound, v1::EventKind::UnmatchedExit];
        let mut batches = Vec::new();
        let mut batch = head;
        let mut events = events.into_iter().peekable();
        loop {
            let mut user_bytes = 0;
            while batch.events.len() < MAX_EVENTS
                && user_bytes < MAX_USER_DATA
                && let Some(Made { event, source, .. }) = events.next()
            {
                if !of_none.contains(&event.kind()) {
                    self.name(source, FunctionId(event.function), &mut batch);
                }
                user_bytes += event
                    .user_event
                    .as_ref()
                    .map_or(0, |user_event| user_event.data.len());
                batch.events.push(event);
            }
            if batch != v1::EventBatch::default() {
                batches.push(std::mem::take(&mut batch));
            }
            if events.peek().is_none() {
                break;
            }
        }
        for source in ended {
            self.processes.remove(&source);
        }
        batches
    }

    fn pid(&self, source: Source) -> u32 {
        self.processes.get(&source).map_or(0, |process| process.pid)
    }

    fn anchor(&mut self, anchor: ClockAnchor) {
        if self.anchors.len() == MAX_ANCHORS {
            self.anchors.remove(0);
        }
        self.anchors.push(anchor);
        self.clock = Clock::new(self.anchors.clone());
    }

    /// Appends the wanted events of a block. Returns the number of lost events in the block.
    fn decode(&mut self, source: Source, block: &Block, events: &mut Vec<Made>) -> u64 {
        let tid = self.threads.tid((source, block.thread));
        let pid = self.pid(source);
        let mut lost = 0_u64;
        // Undecodable bytes would end the block. They do not occur, because the collector made the
        // block.
        let mut unpacked = block.events();
        while let Some(Ok(event)) = unpacked.next() {
            let (function, kind, values, user_event) = match event.body {
                EventBody::Lost { events } => {
                    lost = lost.saturating_add(events);
                    continue;
                }
                EventBody::Unwound { calls } => {
                    let left = v1::Event {
                        tid,
                        pid,
                        kind: v1::EventKind::Unwound.into(),
                        calls: Some(calls),
                        ..v1::Event::default()
                    };
                    self.of_no_function(source, event.ticks, left, events);
                    continue;
                }
                EventBody::UnmatchedExit => {
                    let unmatched_exit = v1::Event {
                        tid,
                        pid,
                        kind: v1::EventKind::UnmatchedExit.into(),
                        ..v1::Event::default()
                    };
                    self.of_no_function(source, event.ticks, unmatched_exit, events);
                    continue;
                }
                // The collector makes no such event.
                EventBody::Cpu { .. } => continue,
                EventBody::Call {
                    function,
                    kind,
                    values,
                } => (function, kind_of(kind), values, None),
                EventBody::Data { kind, data } => {
                    // The collector always sets the function.
                    let Some(function) = data.function() else {
                        continue;
                    };
                    let (event_kind, event_type) = match kind {
                        DataKind::Custom => (v1::EventKind::Custom, None),
                        DataKind::Typed(event_type) => (v1::EventKind::Typed, Some(event_type)),
                        // Blocks have no such event.
                        DataKind::Kernel(_) => continue,
                    };
                    let user_event = v1::UserEvent {
                        data: unpacked.data(data).to_vec(),
                        size: data.size(),
                        r#type: event_type.map(u32::from),
                    };
                    (function, event_kind, Values::NONE, Some(user_event))
                }
            };
            if !self.is_wanted(source, function) {
                continue;
            }
            let (arguments, result) = match kind {
                v1::EventKind::Exit => (Vec::new(), values.first()),
                _ => (values.as_slice().to_vec(), None),
            };
            let made = v1::Event {
                monotonic_ns: self.clock.monotonic_ns(event.ticks),
                tid,
                function: function.0,
                kind: kind.into(),
                arguments,
                result,
                user_event,
                pid,
                calls: None,
            };
            events.push(Made {
                ticks: event.ticks.0,
                source,
                event: made,
            });
        }
        lost
    }

    /// Appends an event that concerns all functions of a process, unless only some are wanted.
    fn of_no_function(
        &self,
        source: Source,
        ticks: Ticks,
        event: v1::Event,
        events: &mut Vec<Made>,
    ) {
        let process = self.processes.get(&source);
        if process.is_none_or(|process| process.wanted.is_none()) {
            let ticks = ticks.0;
            let event = v1::Event {
                monotonic_ns: self.clock.monotonic_ns(Ticks(ticks)),
                ..event
            };
            events.push(Made {
                ticks,
                source,
                event,
            });
        }
    }

    fn is_wanted(&self, source: Source, function: FunctionId) -> bool {
        let process = self.processes.get(&source);
        let wanted = process.and_then(|process| process.wanted.as_ref());
        wanted.is_none_or(|wanted| wanted.contains(&function))
    }

    /// Adds the name of a function unless it was sent before.
    fn name(&mut self, source: Source, id: FunctionId, batch: &mut v1::EventBatch) {
        if let Some(process) = self.processes.get_mut(&source)
            && !process.named.contains(&id)
            && let Some(name) = self.names.function(source, id)
        {
            process.named.insert(id);
            batch.functions.push(name);
        }
    }
}

fn kind_of(kind: CallKind) -> v1::EventKind {
    match kind {
        CallKind::Enter => v1::EventKind::Enter,
        CallKind::Exit => v1::EventKind::Exit,
        CallKind::TailExit => v1::EventKind::TailExit,
    }
}

// === impl Threads ===

impl Threads {
    fn insert(&mut self, id: (Source, ThreadId), tid: u32) {
        if self.0.len() >= MAX_THREADS {
            self.0.retain(|_, thread| std::mem::take(&mut thread.used));
        }
        if self.0.len() < MAX_THREADS {
            self.0.insert(id, KnownThread { tid, used: true });
        }
    }

    /// The kernel id of a thread. 0 if it is unknown.
    fn tid(&mut self, id: (Source, ThreadId)) -> u32 {
        self.0.get_mut(&id).map_or(0, |thread| {
            thread.used = true;
            thread.tid
        })
    }
}

#[cfg(test)]
mod tests;
