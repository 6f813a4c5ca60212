//! The common part of all importers: it maps numbers of the kernel and of maps to ids, and writes
//! calls into blocks. It does not decode logs; the importers do.

use std::collections::HashMap;
use std::io;

use super::anchors::anchors;
use super::ids::next_id;
use super::notes::Notes;
use super::spool::Spool;
use super::{KnownFunction, OpenError, Options};
use crate::FileAddr;
use crate::container::BlockEncoder;
use crate::function_map::FunctionMap;
use crate::llvm::fdr::FunctionKind;
use crate::model::{
    CallKind, DataKind, Function, FunctionId, Module, ModuleId, Process, ProcessId, Thread,
    ThreadId, Ticks, Trace, unpacked,
};

/// The most threads with a block in progress, for a log that mixes threads.
const MOST_OPEN: usize = 256;

/// The owner of an event by the kernel's ids; 0 if unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) pid: u32,
    pub(super) tid: u32,
}

/// Converts a foreign log.
#[derive(Debug)]
pub(super) struct Importer<'a> {
    options: &'a Options,
    spool: Spool,
    processes: HashMap<u32, ProcessId>,
    threads: HashMap<Owner, ThreadId>,
    /// The number of modules that have been written: objects of the log from 0, without gaps.
    objects: u32,
    /// The id + 1 of each function by its id in the log; 0 before its first use.
    functions: FunctionMap<u32>,
    /// The number of functions so far.
    known: u32,
    /// The blocks in progress.
    lanes: Vec<ThreadBlock>,
    /// The index in `lanes` of each of these threads.
    places: foldhash::HashMap<ThreadId, usize>,
    notes: Notes,
}

/// A thread's block in progress.
#[derive(Debug)]
struct ThreadBlock {
    encoder: BlockEncoder,
    cpu: Option<u16>,
    /// The time of its latest event.
    now: u64,
    /// An entry whose arguments may follow.
    entered: Option<(Ticks, FunctionId, Option<u64>)>,
}

// === impl Importer ===

impl<'a> Importer<'a> {
    /// `frequency` is in ticks per second, 0 if unknown. `wall` is a moment on the counter and in
    /// nanoseconds since 1970.
    pub(super) fn new(
        options: &'a Options,
        frequency: u64,
        wall: Option<(u64, u64)>,
    ) -> Result<Self, OpenError> {
        let mut spool = Spool::new()?;
        if frequency != 0 {
            for anchor in anchors(frequency, wall) {
                spool.writer.add(&anchor)?;
            }
        }
        Ok(Self {
            options,
            spool,
            processes: HashMap::new(),
            threads: HashMap::new(),
            objects: 0,
            functions: FunctionMap::default(),
            known: 0,
            lanes: Vec::new(),
            places: foldhash::HashMap::default(),
            notes: Notes::default(),
        })
    }

    /// The id of a thread. The first call for a thread writes the thread.
    pub(super) fn thread(&mut self, owner: Owner) -> io::Result<ThreadId> {
        if let Some(known) = self.threads.get(&owner) {
            return Ok(*known);
        }
        let process = self.process(owner.pid)?;
        let id = ThreadId(next_id(self.threads.len())?);
        self.spool.writer.add(&Thread {
            id,
            process,
            tid: owner.tid,
            name: String::new(),
        })?;
        self.threads.insert(owner, id);
        Ok(id)
    }

    /// The id of a function, by its id in the log. `named` is its name in the log.
    #[inline]
    pub(super) fn function(&mut self, number: i32, named: Option<&str>) -> io::Result<FunctionId> {
        let known = *self.functions.entry(FunctionId(number.cast_unsigned()));
        match known.checked_sub(1) {
            Some(id) => Ok(FunctionId(id)),
            None => self.new_function(number, named),
        }
    }

    #[cold]
    fn new_function(&mut self, number: i32, named: Option<&str>) -> io::Result<FunctionId> {
        let (object, xray_id) = unpacked(number.cast_unsigned());
        self.add_objects(object)?;
        let id = FunctionId(self.known);
        self.known = next_id(self.known as usize + 1)?;
        let unknown = || KnownFunction {
            symbol: None,
            name: named.map_or_else(|| format!("#{number}"), str::to_owned),
            address: FileAddr(0),
            source: None,
            sleds: 0,
        };
        let known = self.options.functions.get(&number).cloned();
        let KnownFunction {
            symbol,
            name,
            address,
            source,
            sleds,
        } = known.unwrap_or_else(unknown);
        self.spool.writer.add(&Function {
            id,
            module: ModuleId(object),
            xray_id,
            address,
            symbol,
            name,
            source,
            sleds,
        })?;
        *self.functions.entry(FunctionId(number.cast_unsigned())) = self.known;
        Ok(id)
    }

    /// Adds the begin or the end of a call.
    #[inline]
    pub(super) fn call(
        &mut self,
        thread: ThreadId,
        tsc: u64,
        cpu: u16,
        kind: FunctionKind,
        function: FunctionId,
    ) -> io::Result<()> {
        let place = self.place(thread)?;
        let lane = &mut self.lanes[place];
        self.notes.backwards += u64::from(lane.pass_to(tsc, cpu));
        lane.put_entry();
        let ticks = Ticks(tsc);
        match kind {
            FunctionKind::Enter | FunctionKind::EnterArg => {
                lane.entered = Some((ticks, function, None));
            }
            FunctionKind::Exit => lane
                .encoder
                .push_call(ticks, function, CallKind::Exit, None),
            FunctionKind::TailExit => {
                lane.encoder
                    .push_call(ticks, function, CallKind::TailExit, None);
            }
        }
        lane.cut_block(&mut self.spool)
    }

    /// Adds an argument of the call that was entered last in this thread.
    pub(super) fn argument(&mut self, thread: ThreadId, value: u64) {
        let place = self.known_place(thread);
        let lane = place.and_then(|place| self.lanes.get_mut(place));
        match lane.and_then(|lane| lane.entered.as_mut()) {
            Some((_, _, argument @ None)) => *argument = Some(value),
            Some(_) | None => self.notes.more_arguments += 1,
        }
    }

    /// Adds a user event.
    pub(super) fn add_user_event(
        &mut self,
        thread: ThreadId,
        tsc: u64,
        cpu: u16,
        kind: DataKind,
        data: &[u8],
    ) -> io::Result<()> {
        let place = self.place(thread)?;
        let lane = &mut self.lanes[place];
        self.notes.backwards += u64::from(lane.pass_to(tsc, cpu));
        lane.put_entry();
        let cut = lane.encoder.push_data(Ticks(tsc), kind, data);
        self.notes.cut_bytes += cut as u64;
        lane.cut_block(&mut self.spool)
    }

    /// Ends the blocks in progress. Later events of a thread may then be older.
    pub(super) fn end_blocks(&mut self) -> io::Result<()> {
        self.places.clear();
        for mut lane in self.lanes.drain(..) {
            lane.put_entry();
            if let Some(block) = lane.encoder.finish() {
                self.spool.writer.block(&block)?;
            }
        }
        Ok(())
    }

    /// Sets the counts of an importer that reads events itself.
    pub(super) fn note(&mut self, notes: Notes) {
        self.notes = notes;
    }

    /// The ids + 1 of the functions by their ids in the log. The importer has no functions
    /// afterwards.
    pub(super) fn take_functions(&mut self) -> FunctionMap<u32> {
        std::mem::take(&mut self.functions)
    }

    /// Adds notes about the skipped parts, and returns the trace.
    pub(super) fn finish(
        mut self,
        skipped: &crate::llvm::SkippedList,
    ) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
        self.end_blocks()?;
        let mut notes: Vec<(String, u64)> = skipped
            .kept()
            .iter()
            .map(|place| (place.to_string(), 1))
            .collect();
        let kept = skipped.kept().len() as u64;
        notes.push((
            "more skipped places".to_owned(),
            skipped.places().saturating_sub(kept),
        ));
        notes.extend(self.notes.into_list());
        notes.retain(|(_, count)| *count > 0);
        Ok((self.spool.finish()?, notes))
    }

    fn process(&mut self, pid: u32) -> io::Result<ProcessId> {
        if let Some(known) = self.processes.get(&pid) {
            return Ok(*known);
        }
        let id = ProcessId(next_id(self.processes.len())?);
        let program = self.object(0);
        let name = program.rsplit('/').next().unwrap_or_default().to_owned();
        self.spool.writer.add(&Process {
            id,
            pid,
            start_time_ticks: 0,
            command: name,
            executable: program,
            host: None,
        })?;
        self.processes.insert(pid, id);
        self.add_objects(0)?;
        Ok(id)
    }

    /// The file of an object. The log has only the numbers of objects.
    fn object(&self, number: u32) -> String {
        let known = self.options.objects.get(number as usize);
        let unknown = || match number {
            0 => String::new(),
            number => format!("object {number}"),
        };
        known.cloned().unwrap_or_else(unknown)
    }

    /// Writes the objects of the log up to this one, as modules of the first process.
    fn add_objects(&mut self, last: u32) -> io::Result<()> {
        if self.processes.is_empty() {
            self.process(0)?;
        }
        while self.objects <= last {
            let path = self.object(self.objects);
            self.spool.writer.add(&Module {
                id: ModuleId(self.objects),
                process: ProcessId(0),
                path,
                build_id: None,
                load_bias: 0,
                event_formats: Vec::new(),
            })?;
            self.objects += 1;
        }
        Ok(())
    }

    /// The index of a thread's block in progress.
    #[inline]
    fn place(&mut self, thread: ThreadId) -> io::Result<usize> {
        match self.known_place(thread) {
            Some(place) => Ok(place),
            None => self.open_lane(thread),
        }
    }

    #[inline]
    fn known_place(&self, thread: ThreadId) -> Option<usize> {
        match self.lanes.last() {
            // Most logs have many events of one thread before those of the next.
            Some(lane) if lane.encoder.thread() == thread => Some(self.lanes.len() - 1),
            _ => self.places.get(&thread).copied(),
        }
    }

    #[cold]
    fn open_lane(&mut self, thread: ThreadId) -> io::Result<usize> {
        if self.lanes.len() >= MOST_OPEN {
            self.end_blocks()?;
        }
        let place = self.lanes.len();
        self.lanes.push(ThreadBlock {
            encoder: BlockEncoder::new(thread),
            cpu: None,
            now: 0,
            entered: None,
        });
        self.places.insert(thread, place);
        Ok(place)
    }
}

// === impl ThreadBlock ===

impl ThreadBlock {
    /// Advances the time, and sets the processor. Returns whether time ran backwards in the log; it
    /// never does in the trace.
    #[inline]
    fn pass_to(&mut self, tsc: u64, cpu: u16) -> bool {
        let backwards = tsc < self.now;
        self.now = self.now.max(tsc);
        if self.cpu != Some(cpu) {
            self.put_entry();
            self.cpu = Some(cpu);
            self.encoder.push_cpu(Ticks(tsc), cpu);
        }
        backwards
    }

    /// Writes the block if it is long enough.
    #[inline]
    fn cut_block(&mut self, spool: &mut Spool) -> io::Result<()> {
        if self.encoder.encoded_len() < BlockEncoder::GOOD_LEN {
            return Ok(());
        }
        // The next block has to repeat the processor, because it is read by itself.
        self.cpu = None;
        match self.encoder.finish() {
            Some(block) => spool.writer.block(&block),
            None => Ok(()),
        }
    }

    #[inline]
    fn put_entry(&mut self) {
        if let Some((ticks, function, argument)) = self.entered.take() {
            self.encoder
                .push_call(ticks, function, CallKind::Enter, argument);
        }
    }
}
