//! Sums of ended threads that outlive the daemon, as a trace: written by one daemon, and read by
//! the next one. The bytes lie in memory that the traced program may write. Whatever they are, only
//! the sums of that program can be wrong.

use std::{collections::HashMap, io, sync::Arc};

use xray_trace::{
    analysis::{MORE_STACKS, ProfileBudget, StackId, StackSums},
    container::{Item, ProfilePart, Reader},
    model::{CallSums, FunctionId, Missing, ModuleId, Process, Thread, ThreadId},
};

use super::{
    ProcessTables,
    earlier::{LoadedByFile, Unusable},
    process_tables::SourcelessTables,
    trace_writer::TraceWriter,
};
use crate::{
    store::{Source, SumsTrace},
    target::{Functions, Loaded},
    types::Mode,
};

/// The process of the trace.
const PROCESS: Source = Source(0);
/// The memory for the sums that are read, in bytes.
const ROOM_BYTES: usize = 64 << 20;
/// The most threads that are read. The sums of others are added to those of the last one.
const MOST_THREADS: usize = 1 << 14;
/// The longest name of a thread, in characters. Those of the kernel have 15.
const LONGEST_NAME: usize = 64;

/// The writer of the sums of one session.
#[derive(Debug)]
pub(crate) struct SumsWriter {
    tables: Arc<ProcessTables>,
    /// `None` until the trace has begun.
    writer: Option<TraceWriter<Vec<u8>>>,
}

// === impl SumsWriter ===

impl SumsWriter {
    pub(crate) fn new(tables: Arc<ProcessTables>) -> Self {
        Self {
            tables,
            writer: None,
        }
    }
}

impl SumsTrace for SumsWriter {
    fn begin(&mut self) -> io::Result<Vec<u8>> {
        let mut writer = TraceWriter::of_one_process(Vec::new())?;
        let tables = SourcelessTables(&self.tables);
        writer.process(PROCESS, &self.tables.process, &tables)?;
        let begun = self.writer.insert(writer);
        Ok(std::mem::take(begun.get_mut()))
    }

    fn add(&mut self, thread: &Thread, sums: &StackSums) -> io::Result<Vec<u8>> {
        let writer = self.writer.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let tables = SourcelessTables(&self.tables);
        writer.sums(PROCESS, thread, sums, &tables)?;
        Ok(std::mem::take(writer.get_mut()))
    }
}

/// Reads the sums of `process`, whose functions are `functions`, in this mode. Calls of functions
/// that are not loaded any more count as lost, and the calls within them as those of their callers.
///
/// # Errors
/// The bytes are no sums of this process, or more than a daemon writes.
pub(crate) fn read_sums(
    bytes: &[u8],
    mode: Mode,
    process: &Process,
    functions: &Functions,
) -> Result<Vec<(Thread, StackSums)>, Unusable> {
    let mut reader = Reader::new(bytes)?;
    let modules = LoadedByFile::new(&functions.modules());
    let mut read = ReadSums::new(&modules, mode);
    let mut is_of_process = false;
    // One after the other: all sections of a trace at once may take much memory.
    while let Some(item) = reader.next_item()? {
        match item {
            Item::Process(its) => {
                let is_it =
                    (its.pid, its.start_time_ticks) == (process.pid, process.start_time_ticks);
                if !is_it || std::mem::replace(&mut is_of_process, true) {
                    return Err(Unusable::OtherProcess);
                }
            }
            item => read.take(item).map_err(Unusable::Sums)?,
        }
    }
    is_of_process.then_some(read.threads).ok_or(Unusable::Empty)
}

/// The sums of a trace, as far as they are read.
struct ReadSums<'a> {
    loaded: &'a LoadedByFile,
    mode: Mode,
    room: ProfileBudget,
    /// The modules that are loaded.
    modules: HashMap<ModuleId, &'a Loaded>,
    /// Their functions, by the ids in the trace.
    functions: HashMap<FunctionId, FunctionId>,
    threads: Vec<(Thread, StackSums)>,
    /// The place of each thread in `threads`.
    places: HashMap<ThreadId, usize>,
    /// The thread of the parts that follow, and the stacks of those that came since.
    thread: Option<Thread>,
    stacks: Vec<Option<StackId>>,
}

// === impl ReadSums ===

impl<'a> ReadSums<'a> {
    fn new(loaded: &'a LoadedByFile, mode: Mode) -> Self {
        Self {
            loaded,
            mode,
            room: ProfileBudget::new(ROOM_BYTES),
            modules: HashMap::new(),
            functions: HashMap::new(),
            threads: Vec::new(),
            places: HashMap::new(),
            thread: None,
            stacks: Vec::new(),
        }
    }

    fn take(&mut self, item: Item) -> Result<(), String> {
        match item {
            Item::Module(module) => {
                if let Some(loaded) = self.loaded.find(&module) {
                    self.modules.insert(module.id, loaded);
                }
            }
            Item::Function(function) => {
                let module = self.modules.get(&function.module);
                let now = module.and_then(|it| it.id_of(function.xray_id, function.address));
                if let Some(now) = now {
                    self.functions.insert(function.id, now);
                }
            }
            Item::Thread(thread) => {
                self.thread = Some(thread);
                self.stacks.clear();
            }
            Item::Profile(part) => self.add(&part)?,
            _ => return Err("they have other sections than sums".to_owned()),
        }
        Ok(())
    }

    /// Adds the stacks of a part.
    fn add(&mut self, part: &ProfilePart) -> Result<(), String> {
        // Stacks of one thread are not in the sums of another one.
        let thread = self.thread.as_ref();
        let thread = thread.filter(|thread| thread.id == part.thread);
        let thread = thread.ok_or("a thread is not described")?;
        let threads = &mut self.threads;
        let place = *self.places.entry(thread.id).or_insert_with(|| {
            if threads.len() < MOST_THREADS {
                let name = thread.name.chars().take(LONGEST_NAME).collect();
                let thread = Thread {
                    name,
                    ..thread.clone()
                };
                threads.push((thread, StackSums::new(self.room.clone())));
            }
            threads.len() - 1
        });
        if part.first == 0 {
            self.stacks.clear();
        }
        if part.first as usize != self.stacks.len() {
            return Err("a part does not follow the one before".to_owned());
        }
        let (_, sums) = threads.get_mut(place).ok_or("there is no thread")?;
        sums.add_missing(part.missing);
        let mut unnamed = 0_u64;
        let stacks = &mut self.stacks;
        let each = part.each(|stack| {
            let caller = stack.caller.and_then(|caller| stacks.get(caller as usize));
            let caller = caller.copied().flatten();
            let function = match stack.function {
                MORE_STACKS => Some(MORE_STACKS),
                before => self.functions.get(&before).copied(),
            };
            let own = function.map(|function| sums.stack(caller, function));
            match own {
                Some(own) => sums.add_calls(own, &stack.sums),
                None => unnamed = unnamed.saturating_add(events_of(&stack.sums, self.mode)),
            }
            stacks.push(own.or(caller));
            match self.room.used() > 2 * ROOM_BYTES {
                true => Err("they take too much memory".to_owned()),
                false => Ok(()),
            }
        });
        sums.add_missing(Missing {
            lost: unnamed,
            ..Missing::default()
        });
        each.map_err(|error| error.to_string())
    }
}

/// The events of these calls: entries and exits. Counted calls have no exits.
fn events_of(sums: &CallSums, mode: Mode) -> u64 {
    let exits = match mode {
        Mode::Count => 0,
        _ => sums.calls.saturating_sub(sums.unfinished),
    };
    sums.calls.saturating_add(exits)
}

#[cfg(test)]
mod tests {
    use xray_trace::{
        analysis::Profiler,
        container::ProfileEncoder,
        model::{Durations, ProcessId},
    };

    use super::*;

    fn thread(id: u32) -> Thread {
        Thread {
            id: ThreadId(id),
            process: ProcessId(0),
            tid: 100 + id,
            name: format!("worker {id}"),
        }
    }

    /// Function 1 calls function 2, which calls function 3; each takes ten ticks for itself.
    fn sums(calls: u64) -> StackSums {
        let mut profiler = Profiler::new(ProfileBudget::new(1 << 20));
        for at in (0..calls).map(|call| call * 1000) {
            for depth in 0..3 {
                let function = u32::try_from(depth).unwrap() + 1;
                profiler.enter(FunctionId(function), at + 5 * depth);
            }
            for depth in 0..3 {
                let function = 3 - u32::try_from(depth).unwrap();
                profiler.exit(FunctionId(function), at + 15 + 5 * depth);
            }
        }
        profiler.take()
    }

    /// The stacks of sums: the functions, outermost first, with their calls.
    fn stacks(sums: &StackSums) -> Vec<(Vec<u32>, u64)> {
        let mut stacks: Vec<(Vec<u32>, u64)> = Vec::new();
        for part in sums.parts(ThreadId(0), |id| id) {
            let each = part.each(|stack| {
                let caller = stack.caller.map(|caller| stacks[caller as usize].0.clone());
                let mut path = caller.unwrap_or_default();
                path.push(stack.function.0);
                stacks.push((path, stack.sums.calls));
                Ok(())
            });
            each.unwrap();
        }
        stacks
    }

    /// The parts of a thread with so many calls.
    fn parts(id: u32, calls: u64) -> Vec<ProfilePart> {
        sums(calls).parts(ThreadId(id), |id| id)
    }

    /// Reads with these functions, by their ids in the trace.
    fn with_reader<T>(functions: &[(u32, u32)], work: impl FnOnce(&mut ReadSums<'_>) -> T) -> T {
        let loaded = LoadedByFile::new(&[]);
        let mut read = ReadSums::new(&loaded, Mode::Profile);
        let functions = functions.iter();
        let functions = functions.map(|&(before, now)| (FunctionId(before), FunctionId(now)));
        read.functions.extend(functions);
        work(&mut read)
    }

    /// Reads threads with so many calls, as the writer writes them.
    fn sums_of(rows: &[(u32, u64)], functions: &[(u32, u32)]) -> Vec<(Thread, StackSums)> {
        with_reader(functions, |read| {
            for &(id, calls) in rows {
                read.take(Item::Thread(thread(id))).unwrap();
                for part in parts(id, calls) {
                    read.take(Item::Profile(part)).unwrap();
                }
            }
            std::mem::take(&mut read.threads)
        })
    }

    const ALL: &[(u32, u32)] = &[(1, 11), (2, 12), (3, 13)];

    /// A part that names stacks of another thread's part would have callers that are not there.
    #[test]
    fn parts_that_do_not_follow_each_other_are_refused() {
        let [first] = &parts(7, 2)[..] else {
            panic!("one part");
        };
        let next = |thread| ProfilePart {
            first: 3,
            thread: ThreadId(thread),
            ..first.clone()
        };
        with_reader(ALL, |read| {
            read.take(Item::Thread(thread(7))).unwrap();
            read.add(first).unwrap();
            assert!(read.add(&next(8)).is_err());
            read.add(&next(7)).unwrap();
            let mut sums = StackSums::new(ProfileBudget::new(1 << 20));
            sums.add(&read.threads[0].1);
            assert_eq!(stacks(&sums), stacks(&read.threads[0].1));
            read.take(Item::Thread(thread(8))).unwrap();
            assert!(read.add(&next(8)).is_err());
            assert!(
                read.take(Item::Lost {
                    thread: ThreadId(7),
                    events: 1
                })
                .is_err()
            );
        });
    }

    /// Durations make nodes grow that are there already.
    #[test]
    fn sums_that_take_too_much_memory_are_refused() {
        let mut durations = Durations::default();
        durations.add(1, 1);
        durations.add(u64::MAX, 1);
        let parts = |durations| {
            let mut encoder = ProfileEncoder::new(ThreadId(7), Missing::default());
            let sums = CallSums {
                calls: 2,
                durations,
                ..CallSums::default()
            };
            for at in 0..100_000_u32 {
                encoder.push(at.checked_sub(1), FunctionId(1 + at % 3), &sums);
            }
            encoder.finish()
        };
        with_reader(ALL, |read| {
            read.take(Item::Thread(thread(7))).unwrap();
            let short = parts(Durations::default());
            short.iter().try_for_each(|part| read.add(part)).unwrap();
            let long = parts(durations);
            let added = long.iter().try_for_each(|part| read.add(part));
            assert!(added.unwrap_err().contains("too much memory"));
        });
    }

    #[test]
    fn parts_of_a_thread_are_added_up() {
        let read = sums_of(&[(7, 2), (8, 1), (7, 40)], ALL);
        let tids: Vec<u32> = read.iter().map(|(thread, _)| thread.tid).collect();
        assert_eq!(tids, [107, 108]);
        let of = |calls| {
            vec![
                (vec![11], calls),
                (vec![11, 12], calls),
                (vec![11, 12, 13], calls),
            ]
        };
        assert_eq!(stacks(&read[0].1), of(42));
        assert_eq!(stacks(&read[1].1), of(1));
    }

    #[test]
    fn calls_of_functions_that_are_gone_count_as_lost() {
        let read = sums_of(&[(7, 5)], &[(1, 11), (3, 13)]);
        let sums = &read[0].1;
        assert_eq!(stacks(sums), [(vec![11], 5), (vec![11, 13], 5)]);
        assert_eq!(sums.missing().lost, 10);
    }
}
