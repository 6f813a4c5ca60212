//! The calls between two profiles of the same processes: what a recorder that asks for the sums of
//! a process again and again writes for each period.
//!
//! ```text
//!  sums at the first time    ├──────────────┤
//!  sums at the second time   ├──────────────┴───────────────┤
//!  difference                               ├───────────────┤
//! ```
//!
//! Both profiles are files. The numbers of functions and threads may differ between them, so
//! functions are the same if their modules and addresses are, and threads if the kernel's ids are.
//! A thread whose sums were added to those of other ended threads meanwhile is subtracted there. If
//! threads cannot be told apart because an id was given to several, all threads of the process
//! become one. So the sums of each stack of a process are always exact.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use super::{MORE_STACKS, ProfileBudget, StackId, StackSums};
use crate::FileAddr;
use crate::container::{Item, ProfileError, ProfilePart, ReadError, Reader, Writer};
use crate::model::{FunctionId, ModuleId, Process, ProcessId, Thread, ThreadId};

/// The memory for the sums of a profile, in bytes.
const ROOM_BYTES: usize = 256 << 20;
/// The most functions, modules and threads of a profile, each.
const MOST_ROWS: usize = 1 << 20;

/// A profile that is read to be compared.
#[derive(Debug)]
pub struct SummedProfile {
    /// The sections without sums, in order.
    tables: Vec<Item>,
    processes: BTreeMap<ProcessId, Process>,
    /// The process, the path and the load bias of each module.
    modules: BTreeMap<ModuleId, (ProcessId, String, u64)>,
    functions: BTreeMap<FunctionId, FunctionKey>,
    threads: BTreeMap<ThreadId, ThreadKey>,
    sums: BTreeMap<ThreadKey, ThreadSums>,
}

/// What identifies a function in all profiles of its process.
type FunctionKey = (ProcessKey, String, u64, FileAddr);
/// The pid and the start time.
type ProcessKey = (u32, u64);
/// The process and the kernel's id of a thread. 0 stands for ended threads.
type ThreadKey = (ProcessKey, u32);

#[derive(Debug)]
struct ThreadSums {
    /// The first thread in the profile with the key.
    thread: ThreadId,
    sums: StackSums,
}

/// The reason why a profile cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum SummedProfileError {
    /// The file cannot be read as a trace.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Its sums are damaged.
    #[error(transparent)]
    Sums(#[from] ProfileError),
    /// It ends too early, or has no sums, or too many.
    #[error("{0}")]
    Unusable(&'static str),
    /// The difference cannot be written.
    #[error("cannot write the profile")]
    Write(#[from] io::Error),
}

// === impl SummedProfile ===

impl SummedProfile {
    /// Reads a profile.
    ///
    /// # Errors
    ///
    /// It cannot be read, is cut off, or holds events instead of sums.
    pub fn read(file: impl Read) -> Result<Self, SummedProfileError> {
        let mut reader = Reader::new(file)?;
        // Too many sums are an error, and no stack is left out.
        let room = ProfileBudget::unlimited();
        let mut this = Self {
            tables: Vec::new(),
            processes: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            threads: BTreeMap::new(),
            sums: BTreeMap::new(),
        };
        // The stacks of each thread of the file so far.
        let mut stacks = BTreeMap::<ThreadId, Vec<StackId>>::new();
        let mut is_ended = false;
        while let Some(item) = reader.next_item()? {
            if this.tables.len() > 4 * MOST_ROWS {
                return Err(SummedProfileError::Unusable("the profile is too large"));
            }
            match item {
                Item::Profile(part) => this.add(&part, &room, &mut stacks)?,
                Item::End(_) => is_ended = true,
                Item::Block(_) => {
                    return Err(SummedProfileError::Unusable("the trace has events"));
                }
                item => {
                    this.note(&item);
                    this.tables.push(item);
                }
            }
        }
        match is_ended {
            true => Ok(this),
            false => Err(SummedProfileError::Unusable("the profile is cut off")),
        }
    }

    /// Notes the keys of a row.
    fn note(&mut self, item: &Item) {
        match item {
            Item::Process(process) => {
                self.processes.insert(process.id, process.clone());
            }
            Item::Module(module) => {
                let facts = (module.process, module.path.clone(), module.load_bias);
                self.modules.insert(module.id, facts);
            }
            Item::Function(function) => {
                if let Some((process, path, bias)) = self.modules.get(&function.module) {
                    let key = (self.key(*process), path.clone(), *bias, function.address);
                    self.functions.insert(function.id, key);
                }
            }
            Item::Thread(Thread {
                id, process, tid, ..
            }) => {
                let key = (self.key(*process), *tid);
                self.threads.insert(*id, key);
            }
            _ => {}
        }
    }

    fn key(&self, process: ProcessId) -> ProcessKey {
        let process = self.processes.get(&process);
        process.map_or((0, 0), |process| (process.pid, process.start_time_ticks))
    }

    fn add(
        &mut self,
        part: &ProfilePart,
        room: &ProfileBudget,
        stacks: &mut BTreeMap<ThreadId, Vec<StackId>>,
    ) -> Result<(), SummedProfileError> {
        // A profile without calls has a part without a thread.
        let key = self.threads.get(&part.thread).copied();
        let key = key.unwrap_or(((0, 0), 0));
        let known = self.sums.entry(key).or_insert_with(|| ThreadSums {
            thread: part.thread,
            sums: StackSums::new(room.clone()),
        });
        known.sums.add_missing(part.missing);
        let places = stacks.entry(part.thread).or_default();
        if places.len() != part.first as usize {
            return Err(SummedProfileError::Unusable("the profile has a gap"));
        }
        part.each(|stack| {
            let caller = stack.caller.and_then(|at| places.get(at as usize)).copied();
            let place = known.sums.stack(caller, stack.function);
            known.sums.add_calls(place, &stack.sums);
            places.push(place);
            match places.len() > MOST_ROWS || room.used() > 2 * ROOM_BYTES {
                true => Err("the profile is too large".to_owned()),
                false => Ok(()),
            }
        })?;
        Ok(())
    }

    /// The processes in the profile, as pid and start time.
    pub fn processes(&self) -> impl Iterator<Item = (u32, u64)> {
        self.processes
            .values()
            .map(|process| (process.pid, process.start_time_ticks))
    }

    /// Forgets the sums of processes whose pids `keeps` does not hold for.
    pub fn retain_processes(&mut self, keeps: impl Fn(u32) -> bool) {
        self.sums.retain(|((pid, _), _), _| keeps(*pid));
    }

    /// Whether `earlier` can be an earlier profile of the same processes: no stack of one has fewer
    /// calls here.
    #[must_use]
    pub fn covers(&self, earlier: &Self) -> bool {
        let own = by_process(self.sums.iter().map(|(key, it)| (*key, it.sums.clone())));
        let theirs = by_process(self.in_own_numbers(earlier).into_iter());
        theirs
            .iter()
            .all(|(process, theirs)| own.get(process).is_some_and(|own| own.covers(theirs)))
    }

    /// Writes the calls that came after `earlier`, as a profile. Returns their number.
    ///
    /// # Errors
    ///
    /// The errors of `out`.
    pub fn write_since(
        &self,
        earlier: Option<&Self>,
        out: impl Write,
    ) -> Result<u64, SummedProfileError> {
        let mut writer = Writer::new(out)?;
        for item in &self.tables {
            put(&mut writer, item)?;
        }
        let mut calls = 0_u64;
        for (thread, since) in self.since(earlier) {
            for (_, sums) in since.calls() {
                calls = calls.saturating_add(sums.calls);
            }
            for part in since.parts(thread, |function| function) {
                writer.profile(&part)?;
            }
        }
        writer.finish(&[])?.flush()?;
        Ok(calls)
    }

    /// The sums of each thread after `earlier`.
    fn since(&self, earlier: Option<&Self>) -> Vec<(ThreadId, StackSums)> {
        let mut before = earlier.map_or_else(BTreeMap::new, |earlier| self.in_own_numbers(earlier));
        let mut differences = Vec::new();
        let mut processes: Vec<ProcessKey> =
            self.sums.keys().map(|(process, _)| *process).collect();
        processes.dedup();
        for process in processes {
            let of_process = (process, 0)..=(process, u32::MAX);
            let own: Vec<_> = self.sums.range(of_process.clone()).collect();
            let keys: Vec<ThreadKey> = before.range(of_process).map(|(key, _)| *key).collect();
            let mut theirs: BTreeMap<ThreadKey, StackSums> = keys
                .into_iter()
                .filter_map(|key| before.remove_entry(&key))
                .collect();
            let ended = (process, 0);
            let is_here = |key: &ThreadKey| own.iter().any(|(its, _)| *its == key);
            let gone: Vec<ThreadKey> = theirs.keys().filter(|key| !is_here(key)).copied().collect();
            for key in gone.into_iter().filter(|key| *key != ended) {
                if let Some(sums) = theirs.remove(&key) {
                    merge(&mut theirs, ended, &sums);
                }
            }
            let is_told_apart = theirs.iter().all(|(key, theirs)| {
                let mut own = own.iter().filter(|(its, _)| *its == key);
                own.next().is_some_and(|(_, own)| own.sums.covers(theirs))
            });
            if is_told_apart {
                differences.extend(own.into_iter().map(|(key, own)| {
                    let since = match theirs.get(key) {
                        Some(theirs) => own.sums.since(theirs),
                        None => own.sums.clone(),
                    };
                    (own.thread, since)
                }));
                continue;
            }
            let together = |sums: &mut dyn Iterator<Item = &StackSums>| {
                let mut all = StackSums::new(ProfileBudget::unlimited());
                sums.for_each(|sums| all.add(sums));
                all
            };
            let all = together(&mut own.iter().map(|(_, own)| &own.sums));
            let since = all.since(&together(&mut theirs.values()));
            // The first one is that of ended threads, if there is one.
            differences.extend(own.first().map(|(_, first)| (first.thread, since)));
        }
        differences
    }

    /// The sums of an earlier profile, with the numbers of functions here.
    fn in_own_numbers(&self, earlier: &Self) -> BTreeMap<ThreadKey, StackSums> {
        let own = self.functions.iter();
        let own: BTreeMap<&FunctionKey, FunctionId> = own.map(|(id, key)| (key, *id)).collect();
        // A function that is not here has no calls here.
        let unknown = FunctionId(u32::MAX - 2);
        let number = |theirs: FunctionId| match theirs {
            MORE_STACKS => MORE_STACKS,
            theirs => {
                let key = earlier.functions.get(&theirs);
                key.and_then(|key| own.get(key)).copied().unwrap_or(unknown)
            }
        };
        let theirs = earlier.sums.iter();
        theirs
            .map(|(key, theirs)| (*key, theirs.sums.renumbered(number)))
            .collect()
    }
}

/// The sums of all threads of each process.
fn by_process(
    threads: impl Iterator<Item = (ThreadKey, StackSums)>,
) -> BTreeMap<ProcessKey, StackSums> {
    let mut all = BTreeMap::new();
    for ((process, _), sums) in threads {
        merge(&mut all, process, &sums);
    }
    all
}

fn merge<K: Ord>(all: &mut BTreeMap<K, StackSums>, key: K, sums: &StackSums) {
    let all = all
        .entry(key)
        .or_insert_with(|| StackSums::new(ProfileBudget::unlimited()));
    all.add(sums);
}

/// Writes a section that has no sums.
fn put<W: Write>(writer: &mut Writer<W>, item: &Item) -> io::Result<()> {
    match item {
        Item::Process(row) => writer.add(row),
        Item::Module(row) => writer.add(row),
        Item::Lifetime(row) => writer.add(row),
        Item::Suppression(row) => writer.add(row),
        Item::Duty(row) => writer.add(row),
        Item::Filter(row) => writer.add(row),
        Item::Gap(row) => writer.add(row),
        Item::Function(row) => writer.add(row),
        Item::Thread(row) => writer.add(row),
        Item::EventType(row) => writer.add(row),
        Item::Anchor(row) => writer.add(row),
        Item::Recording(row) => writer.add(row),
        Item::Origin { process, origin } => writer.origin(*process, *origin),
        // They are about events.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CallSums, Function, Module, Profile, Trace};

    /// Calls of a stack in a thread: the functions, outermost first, and the durations.
    type Calls<'a> = (u32, &'a [u32], &'a [u64]);

    /// A profile. `shift` changes the numbers of functions and threads.
    fn profile(shift: u32, threads: &[(u32, &str)], calls: &[Calls<'_>]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let process = ProcessId(0);
        writer
            .add(&Process {
                id: process,
                pid: 7,
                start_time_ticks: 3,
                command: String::new(),
                executable: String::new(),
                host: None,
            })
            .unwrap();
        let module = ModuleId(0);
        writer
            .add(&Module {
                id: module,
                process,
                path: "/bin/x".to_owned(),
                build_id: None,
                load_bias: 0,
                event_formats: Vec::new(),
            })
            .unwrap();
        for number in 0..4 {
            let function = (number + shift) % 4;
            writer
                .add(&Function {
                    id: FunctionId(number),
                    module,
                    xray_id: function + 1,
                    address: FileAddr(0x1000 * u64::from(function)),
                    symbol: None,
                    name: format!("f{function}"),
                    source: None,
                    sleds: 2,
                })
                .unwrap();
        }
        let number = |function: u32| FunctionId((function + 4 - shift % 4) % 4);
        for (at, (tid, name)) in (shift..).zip(threads) {
            writer
                .add(&Thread {
                    id: ThreadId(at),
                    process,
                    tid: *tid,
                    name: (*name).to_owned(),
                })
                .unwrap();
            let mut sums = StackSums::new(ProfileBudget::new(1 << 20));
            for (_, path, durations) in calls.iter().filter(|(its, ..)| its == tid) {
                let mut place = None;
                for function in *path {
                    place = Some(sums.stack(place, number(*function)));
                }
                let mut added = CallSums::default();
                durations
                    .iter()
                    .for_each(|duration| added.finish(*duration));
                sums.add_calls(place.unwrap(), &added);
            }
            for part in sums.parts(ThreadId(at), |function| function) {
                writer.profile(&part).unwrap();
            }
        }
        writer.finish(&[]).unwrap()
    }

    /// The calls of each path in each thread.
    fn rows(file: &[u8]) -> Vec<(u32, String, u64)> {
        let trace = Trace::read(file).unwrap();
        let profile = Profile::of_trace(trace).unwrap().unwrap();
        let mut rows = Vec::new();
        for stack in profile.stacks() {
            let mut path = Vec::new();
            let mut at = Some(*stack);
            while let Some(stack) = at {
                path.insert(
                    0,
                    profile.tables().function_name(stack.function).into_owned(),
                );
                at = stack.caller.map(|caller| profile.stacks()[caller]);
            }
            let tid = profile.tables().thread(stack.thread).unwrap().tid;
            if stack.calls > 0 {
                rows.push((tid, path.join(";"), stack.calls));
            }
        }
        rows.sort();
        rows
    }

    fn difference(earlier: &[u8], later: &[u8]) -> (Vec<(u32, String, u64)>, u64) {
        let read = |file| SummedProfile::read(file).unwrap();
        let (earlier, later) = (read(earlier), read(later));
        let mut out = Vec::new();
        let calls = later.write_since(Some(&earlier), &mut out).unwrap();
        (rows(&out), calls)
    }

    fn row(tid: u32, path: &str, calls: u64) -> (u32, String, u64) {
        (tid, path.to_owned(), calls)
    }

    #[test]
    fn each_stack_has_the_calls_of_the_period() {
        let earlier = profile(
            0,
            &[(1, "a"), (2, "b")],
            &[(1, &[0, 1], &[5]), (2, &[2], &[9])],
        );
        // Other numbers, another name, and a new thread.
        let later = profile(
            3,
            &[(1, "a"), (2, "renamed"), (3, "c")],
            &[
                (1, &[0, 1], &[5, 6, 7]),
                (1, &[0], &[20]),
                (2, &[2], &[9]),
                (3, &[3], &[1]),
            ],
        );
        let expected = vec![row(1, "f0", 1), row(1, "f0;f1", 2), row(3, "f3", 1)];
        assert_eq!(difference(&earlier, &later), (expected, 4));
        // Without an earlier one, everything.
        let all = SummedProfile::read(&*later).unwrap();
        assert_eq!(all.write_since(None, Vec::new()).unwrap(), 6);
        assert_eq!(all.processes().collect::<Vec<_>>(), [(7, 3)]);
    }

    #[test]
    fn the_sums_of_a_process_are_exact_whatever_becomes_of_its_threads() {
        let earlier = profile(
            0,
            &[(1, "a"), (2, "b")],
            &[(1, &[0], &[5]), (2, &[0], &[9, 9])],
        );
        // Thread 2 is among the ended ones.
        let later = profile(
            0,
            &[(0, ""), (1, "a")],
            &[(0, &[0], &[9, 9, 9]), (1, &[0], &[5, 5])],
        );
        let expected = vec![row(0, "f0", 1), row(1, "f0", 1)];
        assert_eq!(difference(&earlier, &later), (expected, 2));
        // Another thread has got its id since.
        let reused = profile(
            0,
            &[(0, ""), (1, "a"), (2, "new")],
            &[(0, &[0], &[9, 9]), (1, &[0], &[5]), (2, &[0], &[4])],
        );
        assert_eq!(difference(&earlier, &reused), (vec![row(0, "f0", 1)], 1));
    }

    #[test]
    fn a_file_that_is_cut_is_refused() {
        let whole = profile(0, &[(1, "a")], &[(1, &[0], &[5])]);
        for end in 0..whole.len() {
            assert!(SummedProfile::read(&whole[..end]).is_err(), "{end}");
        }
    }
}
