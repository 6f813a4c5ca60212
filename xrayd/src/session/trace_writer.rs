//! What one process does, or several, as the bytes of one `.xtrace` file: items in, bytes out. No clock, no waiting.
//!
//! Whatever was written so far is a readable file, also if nothing follows. A function is described before the first
//! block that has an event of it, and only then: a program with 100,000 functions of which three are on costs three.
//!
//! Each process has numbered its modules, functions and threads for itself, from 0 on; in a trace, numbers are unique:
//!
//! ```text
//!  process, module    in order of their coming
//!  thread             in runs of 64, each given out when the first of it comes
//!  function           a run for each load of a file; processes in which the same file is loaded share it
//! ```
//!
//! So the calls of a function are one function's, whichever process of a family makes them, and what a process and its forks
//! record needs no new numbers. A block whose functions have others is packed anew. A trace of one process has that process's numbers.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    sync::Arc,
};

use xray_trace::{
    container::{Block, BlockEncoder, End, Events, Writer},
    model::{
        ClockAnchor, Event, EventBody, EventType, Function, FunctionId, Lifetime, Module, ModuleId,
        Origin, Process, ProcessId, Thread, ThreadId,
    },
};

use super::Source;

/// Functions that one trace can describe: an event that names a greater id is kept, without a name.
const MAX_FUNCTIONS: u32 = 1 << 24;
/// Threads of a process that get their numbers at a time.
const RUN: u32 = 64;
/// Between anchors of different processes, in nanoseconds: all tell of the same clock.
const ANCHORS_APART: u64 = 500_000_000;

/// A module with what numbers its functions.
#[derive(Debug, Clone)]
pub struct NumberedModule {
    /// As the process describes it.
    pub module: Module,
    /// The id of its first function in the process.
    pub first: FunctionId,
    /// How many it has.
    pub functions: u32,
    /// What the same file is the same allocation of.
    pub file: Arc<dyn Any + Send + Sync>,
}

/// What a process knows of itself.
pub trait Tables {
    /// A function, by the process's own ids.
    fn function(&self, id: FunctionId) -> Option<Function>;
    /// All modules that there are and were, by id.
    fn modules(&self) -> Vec<NumberedModule>;
    /// For which times they were loaded, those that were not there all the time.
    fn lifetimes(&self) -> Vec<Lifetime>;
}

/// Makes the bytes. See the module's text.
#[derive(Debug)]
pub struct TraceWriter<W> {
    writer: Writer<W>,
    /// The processes whose items come. An entry goes when its process ends.
    sources: BTreeMap<Source, Numbers>,
    /// The runs of the files that were loaded anywhere, by path, allocation, and which load of it in its process it is.
    files: HashMap<(String, usize, usize), Run>,
    /// How many of each were described: the next number.
    processes: u32,
    modules: u32,
    functions: u32,
    threads: u32,
    /// Which functions were described, by their numbers in the trace.
    described: Described,
    /// Whose anchor was the last one, and what time it told.
    anchored: Option<(Source, u64)>,
    /// Losses that the reader caused, over the whole stream.
    reader_lost: u64,
}

/// The functions of a file.
#[derive(Debug)]
struct Run {
    /// The row of the module that they are described with.
    module: ModuleId,
    first: u32,
    /// Keeps the allocation, so that no other file gets its address.
    _file: Arc<dyn Any + Send + Sync>,
}

/// The numbers of one process, its own and the trace's.
#[derive(Debug)]
struct Numbers {
    process: ProcessId,
    /// By id, which is also the order of `own`.
    modules: Vec<ModuleNumbers>,
    /// By the number of the run.
    threads: HashMap<u32, u32>,
}

#[derive(Debug, Clone, Copy)]
struct ModuleNumbers {
    /// Its first function in the process, and how many it has.
    own: u32,
    functions: u32,
    /// Its first function in the trace.
    first: u32,
    /// The row that its functions are described with, and its own.
    module: ModuleId,
    row: ModuleId,
    /// The address of its file's allocation.
    file: usize,
}

/// A set of function ids. Ids are dense, so a bit each; those beyond the bound are never described.
#[derive(Debug, Default)]
struct Described(Vec<u64>);

// === impl TraceWriter ===

impl<W: Write> TraceWriter<W> {
    /// The thread that losses of the reader are counted for in the file: they are of blocks of any thread. No thread of a
    /// process has this id.
    pub const READER: ThreadId = ThreadId(u32::MAX);

    /// Begins a trace: writes the header.
    ///
    /// # Errors
    /// What the inner writer reports, here and in the other methods.
    pub fn new(out: W) -> io::Result<Self> {
        Ok(Self {
            writer: Writer::new(out)?,
            sources: BTreeMap::new(),
            files: HashMap::new(),
            processes: 0,
            modules: 0,
            functions: 0,
            threads: 0,
            described: Described::default(),
            anchored: None,
            reader_lost: 0,
        })
    }

    /// Adds a process; what comes from `source` is its.
    ///
    /// # Errors
    /// What the inner writer reports.
    pub fn process(
        &mut self,
        source: Source,
        process: &Process,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        let id = ProcessId(self.processes);
        self.processes = self.processes.saturating_add(1);
        self.writer.process(&Process {
            id,
            ..process.clone()
        })?;
        let numbers = Numbers {
            process: id,
            modules: Vec::new(),
            threads: HashMap::new(),
        };
        self.sources.insert(source, numbers);
        self.add_modules(source, tables)
    }

    /// Says how a process came to be traced.
    ///
    /// # Errors
    /// What the inner writer reports.
    pub fn origin(&mut self, source: Source, origin: Origin) -> io::Result<()> {
        match self.sources.get(&source) {
            Some(numbers) => self.writer.origin(numbers.process, origin),
            None => Ok(()),
        }
    }

    /// Nothing more comes from `source`: says when those of its modules that are described were loaded.
    ///
    /// # Errors
    /// What the inner writer reports.
    pub fn ended(&mut self, source: Source, tables: &dyn Tables) -> io::Result<()> {
        let Some(numbers) = self.sources.remove(&source) else {
            return Ok(());
        };
        for lifetime in tables.lifetimes() {
            if let Some(module) = numbers.modules.get(lifetime.module.0 as usize) {
                self.writer.lifetime(&Lifetime {
                    module: module.row,
                    ..lifetime
                })?;
            }
        }
        Ok(())
    }

    /// Adds a thread, or its new name.
    ///
    /// # Errors
    /// What the inner writer reports.
    pub fn thread(&mut self, source: Source, thread: &Thread) -> io::Result<()> {
        let id = self.thread_number(source, thread.id);
        let numbers = self.sources.get(&source);
        self.writer.thread(&Thread {
            id,
            process: numbers.map_or(thread.process, |numbers| numbers.process),
            ..thread.clone()
        })
    }

    /// Adds a name of a type of typed events, or its new name.
    ///
    /// # Errors
    /// What the inner writer reports.
    pub fn event_type(&mut self, source: Source, event_type: &EventType) -> io::Result<()> {
        let numbers = self.sources.get(&source);
        self.writer.event_type(&EventType {
            process: numbers.map_or(event_type.process, |numbers| numbers.process),
            ..event_type.clone()
        })
    }

    /// Adds a clock anchor, unless another process has told the same just now.
    ///
    /// # Errors
    /// What the inner writer reports.
    pub fn anchor(&mut self, source: Source, anchor: &ClockAnchor) -> io::Result<()> {
        if self.anchored.is_some_and(|(other, last)| {
            other != source && anchor.monotonic_ns < last.saturating_add(ANCHORS_APART)
        }) {
            return Ok(());
        }
        self.anchored = Some((source, anchor.monotonic_ns));
        self.writer.anchor(anchor)
    }

    /// Adds a function, if that has not been done.
    ///
    /// # Errors
    /// What the inner writer reports.
    pub fn function(
        &mut self,
        source: Source,
        id: FunctionId,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        self.function_number(source, id, tables).map(drop)
    }

    /// Adds a block, after those of its functions that were not described yet, and their modules; `tables` are those of
    /// its process.
    ///
    /// # Errors
    /// A block that is longer than the format allows; what the inner writer reports.
    pub fn block(&mut self, source: Source, block: &Block, tables: &dyn Tables) -> io::Result<()> {
        let thread = self.thread_number(source, block.thread);
        let mut same = true;
        // What cannot be decoded is not described; the reader of the file finds the same bytes.
        for event in block.events().map_while(Result::ok) {
            if let Some(id) = function_of(&event) {
                let number = self.function_number(source, id, tables)?;
                same &= number == id;
            }
        }
        if same {
            return self.writer.block(&Block {
                thread,
                ..block.clone()
            });
        }
        let numbers = self.sources.get(&source);
        let number = |id| numbers.map_or(id, |numbers| numbers.function(id).unwrap_or(NO_FUNCTION));
        match packed_anew(block, thread, number) {
            Some(block) => self.writer.block(&block),
            None => Ok(()),
        }
    }

    /// Notes losses of a thread whose place among its events is not known.
    ///
    /// # Errors
    /// What the inner writer reports.
    pub fn lost(&mut self, source: Source, thread: ThreadId, events: u64) -> io::Result<()> {
        let thread = self.thread_number(source, thread);
        self.writer.lost(thread, events)
    }

    /// Notes events that this trace lost because its reader was too slow.
    ///
    /// # Errors
    /// What the inner writer reports.
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
    /// What the inner writer reports.
    pub fn end(&mut self) -> io::Result<()> {
        self.writer.end(&self.writer.totals())
    }

    /// The inner writer.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut W {
        self.writer.get_mut()
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

    /// Describes a function if that has not been done, and returns its number.
    fn function_number(
        &mut self,
        source: Source,
        id: FunctionId,
        tables: &dyn Tables,
    ) -> io::Result<FunctionId> {
        let found = |this: &Self| {
            let numbers = this.sources.get(&source)?;
            Some((numbers.function(id)?, numbers.module_of(id)?))
        };
        let known = match found(self) {
            Some(known) => Some(known),
            // Of a library that was loaded since.
            None => {
                self.add_modules(source, tables)?;
                found(self)
            }
        };
        let Some((number, module)) = known else {
            return Ok(NO_FUNCTION);
        };
        if self.described.insert(number)
            && let Some(function) = tables.function(id)
        {
            self.writer.function(&Function {
                id: number,
                module,
                ..function
            })?;
        }
        Ok(number)
    }

    /// Adds the modules that have come since.
    fn add_modules(&mut self, source: Source, tables: &dyn Tables) -> io::Result<()> {
        let Some(numbers) = self.sources.get_mut(&source) else {
            return Ok(());
        };
        for module in tables.modules().into_iter().skip(numbers.modules.len()) {
            let NumberedModule {
                module,
                first: own,
                functions,
                file,
            } = module;
            let id = ModuleId(self.modules);
            self.modules = self.modules.saturating_add(1);
            let address = Arc::as_ptr(&file).cast::<()>().addr();
            let loads = numbers
                .modules
                .iter()
                .filter(|module| module.file == address);
            let load = loads.count();
            let next = self.functions;
            let mut is_new = false;
            let run = self
                .files
                .entry((module.path.clone(), address, load))
                .or_insert_with(|| {
                    is_new = true;
                    Run {
                        module: id,
                        first: next,
                        _file: file,
                    }
                });
            numbers.modules.push(ModuleNumbers {
                own: own.0,
                functions,
                first: run.first,
                module: run.module,
                row: id,
                file: address,
            });
            if is_new {
                self.functions = next.saturating_add(functions);
            }
            self.writer.module(&Module {
                id,
                process: numbers.process,
                ..module
            })?;
        }
        Ok(())
    }

    fn thread_number(&mut self, source: Source, id: ThreadId) -> ThreadId {
        let Some(numbers) = self.sources.get_mut(&source) else {
            return id;
        };
        let first = numbers.threads.entry(id.0 / RUN).or_insert_with(|| {
            let first = self.threads;
            // After four thousand million threads the rest share their numbers.
            self.threads = first.saturating_add(RUN).min(Self::READER.0 - RUN);
            first
        });
        ThreadId(*first + id.0 % RUN)
    }
}

/// What an event's function is called that its process does not know.
const NO_FUNCTION: FunctionId = FunctionId(u32::MAX);

fn function_of(event: &Event) -> Option<FunctionId> {
    match event.body {
        EventBody::Call { function, .. } => Some(function),
        EventBody::Data { data, .. } => data.function(),
        EventBody::Cpu { .. }
        | EventBody::Unwound { .. }
        | EventBody::Astray
        | EventBody::Lost { .. } => None,
    }
}

/// The same events with other numbers.
fn packed_anew(
    block: &Block,
    thread: ThreadId,
    number: impl Fn(FunctionId) -> FunctionId,
) -> Option<Block> {
    let mut encoder = BlockEncoder::new(thread);
    let mut events = block.events();
    while let Some(Ok(event)) = events.next() {
        push(&mut encoder, event, &events, &number);
    }
    encoder.finish()
}

fn push(
    encoder: &mut BlockEncoder,
    event: Event,
    events: &Events,
    number: impl Fn(FunctionId) -> FunctionId,
) {
    let Event { ticks, body } = event;
    match body {
        EventBody::Call {
            function,
            kind,
            values,
        } => encoder.push_call(ticks, number(function), kind, values),
        EventBody::Data { kind, data } => {
            let function = data.function().map(number);
            let size = u32::try_from(data.size()).unwrap_or(u32::MAX);
            encoder.push_said(ticks, kind, function, size, events.data(data));
        }
        EventBody::Cpu { cpu } => encoder.push_cpu(ticks, cpu),
        EventBody::Unwound { calls } => encoder.push_unwound(ticks, calls),
        EventBody::Astray => encoder.push_astray(ticks),
        EventBody::Lost { events } => encoder.push_lost(ticks, events),
    }
}

// === impl Numbers ===

impl Numbers {
    fn function(&self, id: FunctionId) -> Option<FunctionId> {
        let module = self.find(id)?;
        Some(FunctionId(
            module.first.saturating_add(id.0.checked_sub(module.own)?),
        ))
    }

    fn module_of(&self, id: FunctionId) -> Option<ModuleId> {
        Some(self.find(id)?.module)
    }

    fn find(&self, id: FunctionId) -> Option<&ModuleNumbers> {
        let after = self.modules.partition_point(|module| module.own <= id.0);
        let module = self.modules.get(after.checked_sub(1)?)?;
        (id.0 - module.own < module.functions).then_some(module)
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
        container::Completeness,
        model::{Birth, CallKind, DataKind, Ticks, Trace},
    };

    use super::*;

    const FIRST: Source = Source(0);

    fn process(pid: u32) -> Process {
        Process {
            id: ProcessId(0),
            pid,
            start_time_ticks: 1,
            command: "demo".to_owned(),
            executable: "/usr/bin/demo".to_owned(),
            host: None,
        }
    }

    /// Modules of a hundred functions each, by the files that are loaded.
    struct Loaded(Vec<(&'static str, Arc<u8>)>);

    impl Loaded {
        fn demo() -> Self {
            Self(vec![("/usr/bin/demo", Arc::new(0))])
        }
    }

    impl Tables for Loaded {
        fn function(&self, id: FunctionId) -> Option<Function> {
            let (path, _) = self.0.get((id.0 / 100) as usize)?;
            Some(Function {
                id,
                module: ModuleId(id.0 / 100),
                xray_id: id.0 % 100 + 1,
                address: FileAddr(0x1000),
                symbol: None,
                name: format!("{path} f{}", id.0 % 100),
                source: None,
                sleds: 2,
            })
        }

        fn lifetimes(&self) -> Vec<Lifetime> {
            let modules = (0..).map(ModuleId).take(self.0.len());
            let gone = modules.map(|module| Lifetime {
                module,
                loaded: None,
                unloaded: Some(Ticks(9)),
            });
            gone.collect()
        }

        fn modules(&self) -> Vec<NumberedModule> {
            let modules = (0..).zip(&self.0);
            let numbered = modules.map(|(index, (path, file))| NumberedModule {
                module: Module {
                    id: ModuleId(index),
                    process: ProcessId(0),
                    path: (*path).to_owned(),
                    build_id: None,
                    load_bias: u64::from(index),
                },
                first: FunctionId(index * 100),
                functions: 100,
                file: Arc::clone(file) as _,
            });
            numbered.collect()
        }
    }

    fn block(thread: u32, calls: &[(u64, u32)]) -> Block {
        let mut encoder = BlockEncoder::new(ThreadId(thread));
        for (ticks, id) in calls {
            encoder.push_call(Ticks(*ticks), FunctionId(*id), CallKind::Enter, None);
        }
        encoder.finish().unwrap()
    }

    fn writer(tables: &Loaded) -> TraceWriter<Vec<u8>> {
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        writer.process(FIRST, &process(7), tables).unwrap();
        writer
    }

    fn taken(writer: &mut TraceWriter<Vec<u8>>) -> Trace {
        Trace::read(writer.get_mut().as_slice()).unwrap()
    }

    fn names(trace: &Trace, thread: u32) -> Vec<String> {
        let threads = trace.blocks_by_thread();
        let blocks = threads[&ThreadId(thread)].iter();
        let events = blocks.flat_map(|block| block.events().map(Result::unwrap));
        let named = events.filter_map(|event| function_of(&event));
        named
            .map(|id| trace.function_name(id).into_owned())
            .collect()
    }

    #[test]
    fn functions_are_described_once_and_only_when_they_are_called() {
        let demo = Loaded::demo();
        let mut writer = writer(&demo);
        for calls in [
            &[(1, 5), (2, 9), (3, 5)][..],
            &[(4, 9), (5, 2), (6, 1_000_000), (7, u32::MAX)],
        ] {
            writer.block(FIRST, &block(3, calls), &demo).unwrap();
        }
        writer.reader_lost(11).unwrap();
        writer.end().unwrap();
        let trace = taken(&mut writer);
        assert_eq!(trace.completeness(), Completeness::Complete);
        let ids: Vec<_> = trace.functions().iter().map(|f| f.id.0).collect();
        assert_eq!(ids, [2, 5, 9]);
        assert_eq!(trace.losses(), [(TraceWriter::<Vec<u8>>::READER, 11)]);
        assert_eq!(writer.totals().calls, 7);
        assert_eq!(writer.reader_lost_total(), 11);
    }

    /// Libraries that are loaded while the stream runs.
    #[test]
    fn modules_that_come_later_are_described_before_their_functions() {
        let mut loaded = Loaded::demo();
        let mut writer = writer(&loaded);
        writer.block(FIRST, &block(3, &[(1, 0)]), &loaded).unwrap();
        loaded.0.push(("/lib/a.so", Arc::new(1)));
        loaded.0.push(("/lib/b.so", Arc::new(2)));
        writer
            .block(FIRST, &block(3, &[(2, 250), (3, 150)]), &loaded)
            .unwrap();
        let trace = taken(&mut writer);
        let described: Vec<_> = loaded.modules().into_iter().map(|m| m.module).collect();
        assert_eq!(trace.modules(), described);
        assert_eq!(
            names(&trace, 3),
            ["/usr/bin/demo f0", "/lib/b.so f50", "/lib/a.so f50"]
        );
    }

    #[test]
    fn what_was_written_is_a_file_whenever_the_stream_breaks_off() {
        let anchor = ClockAnchor {
            ticks: Ticks(1),
            monotonic_ns: 2,
            wall_ns: 3,
        };
        let demo = Loaded::demo();
        let mut writer = writer(&demo);
        writer.anchor(FIRST, &anchor).unwrap();
        writer.block(FIRST, &block(0, &[(1, 1)]), &demo).unwrap();
        let trace = taken(&mut writer);
        assert!(matches!(
            trace.completeness(),
            Completeness::Unfinished { .. }
        ));
        assert_eq!(trace.totals().calls, 1);
        assert_eq!(trace.clock().anchors(), [anchor]);
    }

    /// A process, its fork, which loads a library that the first one has at another place, and a program that has the library alone.
    #[test]
    fn processes_share_the_functions_of_a_file_and_nothing_else() {
        let (demo, library, another) = (Arc::new(0), Arc::new(1), Arc::new(2));
        let mut first = Loaded(vec![("/usr/bin/demo", Arc::clone(&demo))]);
        let mut writer = writer(&first);
        let second = Loaded(vec![
            ("/usr/bin/demo", demo),
            ("/lib/a.so", Arc::clone(&library)),
        ]);
        // The same path, and another file by now.
        let third = Loaded(vec![
            ("/lib/a.so", Arc::clone(&another)),
            ("/lib/a.so", Arc::clone(&library)),
            // Once more, at another place.
            ("/lib/a.so", library),
        ]);
        let (forked, other) = (Source(4), Source(9));
        writer.process(forked, &process(8), &second).unwrap();
        writer.process(other, &process(9), &third).unwrap();
        first.0.push(("/lib/b.so", Arc::new(3)));
        for (source, tables, calls) in [
            (FIRST, &first, &[(1, 1), (2, 102)][..]),
            (forked, &second, &[(1, 1), (3, 103)]),
            (other, &third, &[(1, 1), (4, 103), (5, 600), (5, 203)]),
        ] {
            let thread = Thread {
                id: ThreadId(0),
                process: ProcessId(0),
                tid: 70 + source.0,
                name: String::new(),
            };
            writer.thread(source, &thread).unwrap();
            writer.block(source, &block(0, calls), tables).unwrap();
        }
        let said = {
            let mut encoder = BlockEncoder::new(ThreadId(0));
            encoder.push_said(
                Ticks(6),
                DataKind::Typed(3),
                Some(FunctionId(104)),
                9,
                b"said",
            );
            encoder.push_lost(Ticks(7), 5);
            encoder.push_call(Ticks(8), FunctionId(104), CallKind::TailExit, Some(77));
            encoder.finish().unwrap()
        };
        writer.block(other, &said, &third).unwrap();
        writer.lost(other, ThreadId(0), 2).unwrap();
        let origin = Origin {
            parent: 7,
            by: Birth::Exec,
            unrecorded_ns: 4_000_000,
        };
        writer.origin(other, origin).unwrap();
        writer.ended(other, &third).unwrap();
        writer.end().unwrap();

        let trace = taken(&mut writer);
        let lifetimes = trace.lifetimes().iter();
        assert!(lifetimes.map(|lifetime| lifetime.module.0).eq([3, 4, 5]));
        let pids: Vec<_> = trace
            .processes()
            .iter()
            .map(|process| process.pid)
            .collect();
        assert_eq!(pids, [7, 8, 9]);
        let origins: Vec<_> = (0..3).map(|id| trace.origin(ProcessId(id))).collect();
        assert_eq!(origins, [None, None, Some(&origin)]);
        // And in what is written of it anew.
        let again = Trace::read(trace.write(Vec::new()).unwrap().as_slice()).unwrap();
        assert_eq!(again.origin(ProcessId(2)), Some(&origin));
        let of: Vec<_> = trace
            .modules()
            .iter()
            .map(|m| (m.process.0, m.path.as_str()))
            .collect();
        let expected = [
            (0, "/usr/bin/demo"),
            (1, "/usr/bin/demo"),
            (1, "/lib/a.so"),
            (2, "/lib/a.so"),
            (2, "/lib/a.so"),
            (2, "/lib/a.so"),
            (0, "/lib/b.so"),
        ];
        assert_eq!(of, expected);
        assert_eq!(names(&trace, 0), ["/usr/bin/demo f1", "/lib/b.so f2"]);
        assert_eq!(names(&trace, 64), ["/usr/bin/demo f1", "/lib/a.so f3"]);
        let names = names(&trace, 128);
        assert_eq!(names[..2], ["/lib/a.so f1", "/lib/a.so f3"]);
        assert_eq!(names[2], format!("#{}", u32::MAX));
        assert_eq!(names[3..], ["/lib/a.so f3", "/lib/a.so f4", "/lib/a.so f4"]);
        // The library of the second process is that of the third: one function. Its second load there is not.
        assert_eq!(trace.functions().len(), 6);
        let threads: Vec<_> = trace
            .threads()
            .iter()
            .map(|t| (t.process.0, t.tid))
            .collect();
        assert_eq!(threads, [(0, 70), (1, 74), (2, 79)]);
        let anew = trace.blocks().last().unwrap();
        let mut events = anew.events();
        let Some(Ok(Event {
            body: EventBody::Data { kind, data },
            ..
        })) = events.next()
        else {
            panic!("what was said is gone");
        };
        assert_eq!(
            (kind, data.size(), events.data(data)),
            (DataKind::Typed(3), 9, &b"said"[..])
        );
        let rest: Vec<_> = events.map(|event| event.unwrap().body).collect();
        assert!(matches!(
            rest[..],
            [
                EventBody::Lost { events: 5 },
                EventBody::Call {
                    kind: CallKind::TailExit,
                    values,
                    ..
                }
            ] if values.first() == Some(77)
        ));
        assert_eq!(trace.losses(), [(ThreadId(128), 2)]);
    }

    #[test]
    fn one_clock_is_told_once() {
        let anchor = |monotonic_ns| ClockAnchor {
            ticks: Ticks(monotonic_ns),
            monotonic_ns,
            wall_ns: 0,
        };
        let mut writer = writer(&Loaded::demo());
        for (source, at) in [
            (0, 0),
            (1, 1),
            (0, 2),
            (1, ANCHORS_APART + 2),
            (0, ANCHORS_APART + 3),
        ] {
            writer.anchor(Source(source), &anchor(at)).unwrap();
        }
        let trace = taken(&mut writer);
        let times: Vec<_> = trace
            .clock()
            .anchors()
            .iter()
            .map(|a| a.monotonic_ns)
            .collect();
        assert_eq!(times, [0, 2, ANCHORS_APART + 2]);
    }
}
