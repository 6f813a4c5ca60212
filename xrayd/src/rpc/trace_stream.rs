//! A live trace as the bytes of an `.xtrace` file: items of a feed in, bytes out. No I/O, no clock, no waiting.
//!
//! Whatever was taken so far is a readable file, also if nothing follows. A function is described before the first
//! block that has an event of it, and only then: a program with 100,000 functions of which three are on costs three.

use std::io;

use xray_trace::{
    container::{Block, End, Writer},
    model::{ClockAnchor, EventBody, Function, FunctionId, Module, Process, Thread, ThreadId},
};

/// Makes the bytes. See the module's text.
#[derive(Debug)]
pub struct TraceStream {
    /// Writes into memory, which [`TraceStream::take`] empties; it cannot fail but for a block beyond the format's
    /// bounds.
    writer: Writer<Vec<u8>>,
    /// How many modules were described: their ids are dense.
    modules: usize,
    /// Which functions were described.
    described: Described,
    /// Losses that the reader caused, over the whole stream.
    reader_lost: u64,
}

/// A set of function ids. Ids are dense, so a bit each; those beyond the bound are never described.
#[derive(Debug, Default)]
struct Described(Vec<u64>);

/// Functions that one trace can describe: an event that names a greater id is kept, without a name.
const MAX_FUNCTIONS: u32 = 1 << 24;

// === impl TraceStream ===

impl TraceStream {
    /// The thread that losses of the reader are counted for in the file: they are of blocks of any thread. No thread of a
    /// process has this id.
    pub const READER: ThreadId = ThreadId(u32::MAX);

    /// Begins a trace: header, process, modules, and the clock anchors that are known already.
    ///
    /// # Errors
    ///
    /// Does not happen: the bytes go to memory.
    pub fn new(process: &Process, modules: &[Module], anchors: &[ClockAnchor]) -> io::Result<Self> {
        let mut writer = Writer::new(Vec::new())?;
        writer.process(process)?;
        modules
            .iter()
            .try_for_each(|module| writer.module(module))?;
        anchors
            .iter()
            .try_for_each(|anchor| writer.anchor(anchor))?;
        Ok(Self {
            writer,
            modules: modules.len(),
            described: Described::default(),
            reader_lost: 0,
        })
    }

    /// Adds a thread, or its new name.
    ///
    /// # Errors
    ///
    /// Does not happen: the bytes go to memory.
    pub fn thread(&mut self, thread: &Thread) -> io::Result<()> {
        self.writer.thread(thread)
    }

    /// Adds a clock anchor.
    ///
    /// # Errors
    ///
    /// Does not happen: the bytes go to memory.
    pub fn anchor(&mut self, anchor: &ClockAnchor) -> io::Result<()> {
        self.writer.anchor(anchor)
    }

    /// Adds a block, after those of its functions that were not described yet, and their modules; `function` and `modules` (all that there are,
    /// by id) know them.
    ///
    /// # Errors
    ///
    /// A block that is longer than the format allows.
    pub fn block(
        &mut self,
        block: &Block,
        mut function: impl FnMut(FunctionId) -> Option<Function>,
        modules: impl Fn() -> Vec<Module>,
    ) -> io::Result<()> {
        // What cannot be decoded is not described; the reader of the file finds the same bytes.
        for event in block.events().map_while(Result::ok) {
            let id = match event.body {
                EventBody::Call { function, .. } => Some(function),
                EventBody::Data { data, .. } => data.function(),
                EventBody::Cpu { .. } | EventBody::Lost { .. } => None,
            };
            if let Some(id) = id
                && self.described.insert(id)
                && let Some(function) = function(id)
            {
                if function.module.0 as usize >= self.modules {
                    let known = modules();
                    let new = known.iter().skip(self.modules);
                    new.clone()
                        .try_for_each(|module| self.writer.module(module))?;
                    self.modules = self.modules.max(known.len());
                }
                self.writer.function(&function)?;
            }
        }
        self.writer.block(block)
    }

    /// Notes events that this stream lost because its reader was too slow.
    ///
    /// # Errors
    ///
    /// Does not happen: the bytes go to memory.
    pub fn reader_lost(&mut self, events: u64) -> io::Result<()> {
        if events == 0 {
            return Ok(());
        }
        self.reader_lost = self.reader_lost.saturating_add(events);
        self.writer.lost(Self::READER, events)
    }

    /// Marks the trace as finished. Nothing may follow.
    ///
    /// # Errors
    ///
    /// Does not happen: the bytes go to memory.
    pub fn end(&mut self) -> io::Result<()> {
        self.writer.end(&self.writer.totals())
    }

    /// What was written since the last call.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.writer.get_mut())
    }

    /// Bytes that wait to be taken.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.writer.get_ref().len()
    }

    /// Totals since the beginning; losses of the reader among the lost.
    #[must_use]
    pub fn totals(&self) -> End {
        self.writer.totals()
    }

    /// Events lost by the reader since the beginning.
    #[must_use]
    pub fn reader_lost_total(&self) -> u64 {
        self.reader_lost
    }
}

// === impl Described ===

impl Described {
    /// Whether `id` was not in the set yet and is now.
    fn insert(&mut self, id: FunctionId) -> bool {
        if id.0 >= MAX_FUNCTIONS {
            return false;
        }
        let (word, bit) = ((id.0 / 64) as usize, 1_u64 << (id.0 % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }
}

#[cfg(test)]
mod tests {
    use xray_trace::{
        FileAddr,
        container::{BlockEncoder, Completeness},
        model::{CallKind, ModuleId, ProcessId, Ticks, Trace},
    };

    use super::*;

    fn process() -> Process {
        Process {
            id: ProcessId(0),
            pid: 7,
            start_time_ticks: 1,
            command: "demo".to_owned(),
            executable: "/usr/bin/demo".to_owned(),
            host: None,
        }
    }

    fn module() -> Module {
        Module {
            id: ModuleId(0),
            process: ProcessId(0),
            path: "/usr/bin/demo".to_owned(),
            build_id: None,
            load_bias: 0,
        }
    }

    fn function(id: FunctionId) -> Option<Function> {
        (id.0 < 100).then(|| Function {
            id,
            module: ModuleId(0),
            xray_id: id.0 + 1,
            address: FileAddr(0x1000),
            symbol: None,
            name: format!("f{}", id.0),
            source: None,
            sleds: 2,
        })
    }

    fn block(calls: &[(u64, u32)]) -> Block {
        let mut encoder = BlockEncoder::new(ThreadId(3));
        for (ticks, id) in calls {
            encoder.push_call(Ticks(*ticks), FunctionId(*id), CallKind::Enter, None);
        }
        encoder.finish().unwrap()
    }

    #[test]
    fn functions_are_described_once_and_only_when_they_are_called() {
        let mut stream = TraceStream::new(&process(), &[module()], &[]).unwrap();
        let mut bytes = stream.take();
        stream
            .block(&block(&[(1, 5), (2, 9), (3, 5)]), function, Vec::new)
            .unwrap();
        bytes.extend(stream.take());
        stream
            .block(
                &block(&[(4, 9), (5, 2), (6, 1_000_000), (7, u32::MAX)]),
                function,
                Vec::new,
            )
            .unwrap();
        stream.reader_lost(11).unwrap();
        stream.end().unwrap();
        assert!(stream.pending() > 0);
        bytes.extend(stream.take());
        assert_eq!(stream.pending(), 0);

        let trace = Trace::read(bytes.as_slice()).unwrap();
        assert_eq!(trace.completeness(), Completeness::Complete);
        let names: Vec<_> = trace.functions().iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["f2", "f5", "f9"]);
        assert_eq!(trace.losses(), [(TraceStream::READER, 11)]);
        assert_eq!(stream.totals().calls, 7);
        assert_eq!(stream.reader_lost_total(), 11);
    }

    /// Libraries that are loaded while the stream runs.
    #[test]
    fn modules_that_come_later_are_described_before_their_functions() {
        let modules = || -> Vec<Module> {
            let ids = (0..3).map(ModuleId);
            ids.map(|id| Module { id, ..module() }).collect()
        };
        let of_module = |id: FunctionId| {
            let module = ModuleId(id.0);
            function(id).map(|function| Function { module, ..function })
        };
        let mut stream = TraceStream::new(&process(), &modules()[..1], &[]).unwrap();
        for (ticks, id) in [(1, 0), (2, 2), (3, 1)] {
            stream
                .block(&block(&[(ticks, id)]), of_module, modules)
                .unwrap();
        }
        let trace = Trace::read(stream.take().as_slice()).unwrap();
        assert_eq!(trace.modules(), modules());
    }

    #[test]
    fn what_was_taken_is_a_file_whenever_the_stream_breaks_off() {
        let anchor = ClockAnchor {
            ticks: Ticks(1),
            monotonic_ns: 2,
            wall_ns: 3,
        };
        let mut stream = TraceStream::new(&process(), &[module()], &[anchor]).unwrap();
        stream.block(&block(&[(1, 1)]), function, Vec::new).unwrap();
        let trace = Trace::read(stream.take().as_slice()).unwrap();
        assert!(matches!(
            trace.completeness(),
            Completeness::Unfinished { .. }
        ));
        assert_eq!(trace.totals().calls, 1);
        assert_eq!(trace.clock().anchors(), [anchor]);
    }
}
