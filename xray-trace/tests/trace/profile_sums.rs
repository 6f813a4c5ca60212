//! Several profiles as one: the calls of a stack in a thread are added up.

use std::fs::File;
use std::io::{Seek as _, Write as _};

use xray_trace::FileAddr;
use xray_trace::analysis::{Budget, Filter, GroupBy, account_profile};
use xray_trace::container::{ProfileEncoder, Writer};
use xray_trace::llvm::ByteOrder;
use xray_trace::llvm::profile::{BlockHeader, FileHeader, write_block, write_file_header};
use xray_trace::model::{
    CallSums, ClockAnchor, DutyWindow, FilterNote, FunctionId, Missing, Process, ProcessId,
    Suppression, Thread, ThreadId, Ticks,
};
use xray_trace::source::{OpenError, OpenedProfile, Options, ProfileSum, open_profile};

use crate::common::{function, module, process};

const WALL: u64 = 1_700_000_000_000_000_000;

/// A profile to be written. A stack is its functions, the outermost first, with the durations of
/// the calls of the innermost one, in nanoseconds.
#[derive(Clone)]
struct Written<'a> {
    process: Process,
    tid: u32,
    /// The names of the functions. Ids are in their order.
    names: &'a [&'a str],
    stacks: &'a [(&'a [&'a str], &'a [u64])],
    ticks_a_ns: u64,
    /// The wall time at which the machine was up for no time.
    booted_ns: u64,
    /// The number of anchors of the clock.
    anchors: u64,
    filter: Option<&'a str>,
    /// The begin of a suppression of the first function and its end, in ticks, and its missing
    /// calls.
    suppressed: Option<(u64, Option<u64>, u64)>,
    /// The begin and the end of a duty window, and the time that it represents, in ticks.
    duty: Option<(u64, u64, u64)>,
}

impl Default for Written<'_> {
    fn default() -> Self {
        Self {
            process: process(0),
            tid: 5000,
            names: &["main", "parse"],
            stacks: &[(&["main"], &[100]), (&["main", "parse"], &[10, 20])],
            ticks_a_ns: 1,
            booted_ns: WALL,
            anchors: 2,
            filter: None,
            suppressed: None,
            duty: None,
        }
    }
}

impl Written<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.add(&self.process).unwrap();
        writer.add(&module(0, 0)).unwrap();
        for (id, name) in (0..).zip(self.names) {
            let mut function = function(id, 0, name);
            // The name gives both. The id does not matter.
            function.address = FileAddr(name.bytes().map(u64::from).sum());
            function.xray_id = u32::from(name.as_bytes()[0]);
            writer.add(&function).unwrap();
        }
        writer
            .add(&Thread {
                id: ThreadId(3),
                process: ProcessId(0),
                tid: self.tid,
                name: "worker".to_owned(),
            })
            .unwrap();
        for ns in (0..self.anchors).map(|nth| nth * 1_000_000_000) {
            writer
                .add(&ClockAnchor {
                    ticks: Ticks(ns * self.ticks_a_ns),
                    monotonic_ns: 5_000_000 + ns,
                    wall_ns: self.booted_ns + 5_000_000 + ns,
                })
                .unwrap();
        }
        if let Some(filter) = self.filter {
            writer
                .add(&FilterNote {
                    process: ProcessId(0),
                    since: None,
                    filter: filter.to_owned(),
                })
                .unwrap();
        }
        if let Some((from, until, calls)) = self.suppressed {
            writer
                .add(&Suppression {
                    function: FunctionId(0),
                    process: ProcessId(0),
                    from: Ticks(from),
                    until: until.map(Ticks),
                    recorded: 0,
                    calls,
                })
                .unwrap();
        }
        if let Some((from, until, stands_for)) = self.duty {
            writer
                .add(&DutyWindow {
                    process: ProcessId(0),
                    from: Ticks(from),
                    until: Ticks(until),
                    stands_for,
                })
                .unwrap();
        }
        let missing = Missing {
            exits_without_entry: 1,
            lost: 2,
            too_deep: 3,
        };
        let mut encoder = ProfileEncoder::new(ThreadId(3), missing);
        for (path, durations) in self.stacks {
            let (innermost, callers) = path.split_last().unwrap();
            let caller = (0..)
                .zip(self.stacks)
                .find(|(_, (path, _))| *path == callers);
            let id = self.names.iter().position(|name| name == innermost);
            let mut sums = CallSums::default();
            for duration in *durations {
                sums.finish(duration * self.ticks_a_ns);
            }
            sums.self_ticks = durations.iter().sum::<u64>() * self.ticks_a_ns;
            let id = FunctionId(id.unwrap() as u32);
            encoder.push(caller.map(|(at, _)| at), id, &sums);
        }
        for part in encoder.finish() {
            writer.profile(&part).unwrap();
        }
        writer.finish(&[]).unwrap()
    }

    fn open(&self) -> OpenedProfile {
        opened(&self.bytes())
    }
}

fn opened(bytes: &[u8]) -> OpenedProfile {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    open(file)
}

fn open(file: File) -> OpenedProfile {
    open_profile(file, &Options::default()).unwrap()
}

fn sum(profiles: &[OpenedProfile]) -> OpenedProfile {
    let mut sum = ProfileSum::new().unwrap();
    for profile in profiles {
        sum.add(profile).unwrap();
    }
    sum.finish().unwrap()
}

/// The name, the calls, the sum of their durations, and the shortest and the longest one.
type Row = (String, u64, u64, Option<(u64, u64)>);

fn rows(opened: &OpenedProfile, by: GroupBy) -> Vec<Row> {
    let account = account_profile(&opened.profile, &Filter::default(), by);
    let rows = account.rows.iter().map(|row| {
        let name = row.subject.name(opened.profile.tables()).into_owned();
        let ends = row.durations.map(|all| (all.min_ns, all.max_ns));
        (name, row.calls, row.sum_ns, ends)
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    rows
}

fn row(name: &str, calls: u64, sum: u64, ends: (u64, u64)) -> Row {
    (name.to_owned(), calls, sum, Some(ends))
}

/// A later profile of the same thread. Other functions, other ids, another rate of the counter.
fn later() -> Written<'static> {
    Written {
        names: &["next", "parse", "main"],
        stacks: &[
            (&["main"], &[300]),
            (&["main", "next"], &[7]),
            (&["main", "parse"], &[20, 31, 5]),
            (&["parse"], &[2]),
        ],
        ticks_a_ns: 3,
        ..Written::default()
    }
}

#[test]
fn stacks_of_one_thread_are_added_up() {
    let both = sum(&[Written::default().open(), later().open()]);
    assert_eq!(both.notes, []);
    let (profile, tables) = (&both.profile, both.profile.tables());
    assert_eq!((tables.processes().len(), tables.threads().len()), (1, 1));
    assert_eq!((tables.functions().len(), profile.stacks().len()), (3, 4));
    let expected = [
        row("main", 2, 400, (100, 300)),
        row("next", 1, 7, (7, 7)),
        row("parse", 6, 88, (2, 31)),
    ];
    assert_eq!(rows(&both, GroupBy::Function), expected);
    assert_eq!(rows(&both, GroupBy::Process).len(), 1);
    let parse = (0..).zip(profile.stacks()).find(|(_, stack)| {
        stack.caller.is_some() && &*tables.function_name(stack.function) == "parse"
    });
    let (at, stack) = parse.unwrap();
    assert_eq!((stack.calls, stack.self_ns), (5, 86));
    let durations = &profile.times(at).unwrap().durations;
    assert_eq!(**durations, [(5, 1), (10, 1), (20, 2), (31, 1)]);
    assert_eq!(
        profile.missing(),
        Missing {
            exits_without_entry: 2,
            lost: 4,
            too_deep: 6
        }
    );
}

#[test]
fn the_order_does_not_matter_and_one_profile_is_its_own_sum() {
    let (one, other) = (Written::default().open(), later().open());
    let all = |opened: &OpenedProfile| {
        [GroupBy::Function, GroupBy::Thread, GroupBy::Process].map(|by| rows(opened, by))
    };
    let alone = sum(std::slice::from_ref(&other));
    assert_eq!(all(&alone), all(&other));
    let again = sum(&[one, other]);
    let turned = sum(&[later().open(), Written::default().open()]);
    assert_eq!(all(&turned), all(&again));
    assert_eq!(turned.profile.tables().clock().faults(), []);
    let nothing = sum(&[]);
    assert_eq!((nothing.profile.stacks(), nothing.notes), (&[][..], vec![]));
}

/// The first is a process. Each of the others is another one.
#[test]
fn other_processes_stay_apart_and_share_functions() {
    let first = Written::default();
    let with = |change: fn(&mut Process)| {
        let mut written = first.clone();
        change(&mut written.process);
        written
    };
    let others = [
        with(|process| process.host = Some("other".to_owned())),
        with(|process| process.host = None),
        with(|process| process.pid += 1),
        with(|process| process.start_time_ticks += 1),
        with(|process| process.executable.push('2')),
        Written {
            booted_ns: WALL + 3_600_000_000_000,
            ..first.clone()
        },
        Written {
            filter: Some("--min-duration 10us"),
            ..first.clone()
        },
    ];
    for (at, other) in (0..).zip(&others) {
        let both = sum(&[first.open(), other.open(), first.open()]);
        let tables = both.profile.tables();
        assert_eq!(tables.processes().len(), 2, "{at}");
        assert_eq!(
            (tables.threads().len(), both.profile.stacks().len()),
            (2, 4)
        );
        let expected = [
            row("main", 3, 300, (100, 100)),
            row("parse", 6, 90, (10, 20)),
        ];
        assert_eq!(rows(&both, GroupBy::Function), expected, "{at}");
    }
    let unknown = with(|process| process.start_time_ticks = 0);
    let both = sum(&[unknown.open(), unknown.open()]);
    assert_eq!(both.profile.tables().processes().len(), 2);
    let thread = Written {
        tid: 5001,
        ..first.clone()
    };
    let tables = sum(&[first.open(), thread.open()]).profile.tables().clone();
    assert_eq!((tables.processes().len(), tables.threads().len()), (1, 2));
}

/// The clocks of the profiles differ by a nanosecond, so that the begin of the suppression does.
#[test]
fn a_suppression_in_two_profiles_is_one() {
    let one = Written {
        suppressed: Some((1_000_000, None, 5)),
        ..Written::default()
    };
    let other = Written {
        suppressed: Some((1_000_000, None, 9)),
        booted_ns: WALL + 1,
        ..Written::default()
    };
    let missing = |opened: &OpenedProfile| {
        let tables = opened.profile.tables();
        let budget = Budget::new(tables, &Filter::default());
        (tables.coverage().suppressions.len(), budget.calls())
    };
    assert_eq!(missing(&sum(&[one.open(), other.open()])), (1, 9));
    assert_eq!(missing(&sum(&[other.open(), one.open()])), (1, 9));
    let elsewhere = Written {
        process: Process {
            host: Some("other".to_owned()),
            ..process(0)
        },
        ..other
    };
    assert_eq!(missing(&sum(&[one.open(), elsewhere.open()])), (2, 14));
}

/// Profiles of one process, the later one with the ends of the times that were open before.
#[test]
fn the_later_extent_of_a_time_counts_in_any_order() {
    let early = Written {
        suppressed: Some((1_000_000, None, 900)),
        duty: Some((2_000_000, 2_500_000, 500_000)),
        ..Written::default()
    };
    let late = Written {
        suppressed: Some((1_000_000, Some(3_000_000), 1000)),
        duty: Some((2_000_000, 3_000_000, 4_000_000)),
        ..Written::default()
    };
    let extents = |opened: &OpenedProfile| {
        let coverage = opened.profile.tables().coverage();
        let suppressions = coverage.suppressions.iter();
        let suppressions = suppressions.map(|one| (one.until.is_some(), one.calls));
        let duty = coverage.duty.iter();
        let duty = duty.map(|window| (window.until.0 - window.from.0, window.stands_for));
        (suppressions.collect::<Vec<_>>(), duty.collect::<Vec<_>>())
    };
    let expected = (vec![(true, 1000)], vec![(1_000_000, 4_000_000)]);
    for order in [[&early, &late], [&late, &early]] {
        assert_eq!(extents(&sum(&order.map(Written::open))), expected);
    }
}

/// A profile of the runtime: a path, and the sums of its calls.
fn of_runtime(pid: u64) -> OpenedProfile {
    let mut bytes = Vec::new();
    let header = FileHeader {
        timestamp: pid,
        pid,
    };
    write_file_header(&header, ByteOrder::Little, &mut bytes).unwrap();
    let block = BlockHeader {
        number: 0,
        thread: 5,
    };
    let paths = [(&[2, 1][..], 4, 40)];
    write_block(block, paths.into_iter(), ByteOrder::Little, &mut bytes).unwrap();
    opened(&bytes)
}

#[test]
fn profiles_of_the_runtime_are_added_up_in_ticks() {
    let both = sum(&[of_runtime(7), of_runtime(6)]);
    assert_eq!(both.written_wall_ns, Some(7));
    assert_eq!(both.notes, []);
    // The outer function has no calls of its own, and no row.
    let expected = [("#2".to_owned(), 8, 80, None)];
    assert_eq!(rows(&both, GroupBy::Function), expected);
    assert_eq!(both.profile.tables().processes().len(), 2);
    assert_eq!(both.format, of_runtime(7).format);
}

#[test]
fn times_of_other_units_are_not_added_up() {
    let (ours, theirs) = (Written::default(), of_runtime(7));
    for (first, other) in [(&ours.open(), &theirs), (&theirs, &ours.open())] {
        let mut sum = ProfileSum::new().unwrap();
        sum.add(first).unwrap();
        let error = sum.add(other).unwrap_err();
        assert!(matches!(error, OpenError::OtherUnit { .. }), "{error}");
        let only = sum.finish().unwrap();
        assert_eq!(
            rows(&only, GroupBy::Function),
            rows(first, GroupBy::Function)
        );
        assert_eq!(only.profile.tables().processes().len(), 1);
    }
    // Durations are left out if only one of the profiles has them.
    let ticks = Written { anchors: 1, ..ours };
    let both = sum(&[ticks.open(), theirs]);
    assert_eq!(both.notes.len(), 1);
    assert!(both.notes[0].0.contains("left out"), "{:?}", both.notes);
    let rows = rows(&both, GroupBy::Function);
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.3.is_none()), "{rows:?}");
}

#[test]
fn a_cut_profile_is_noted() {
    let bytes = Written::default().bytes();
    let cut = opened(&bytes[..bytes.len() - 3]);
    let both = sum(&[cut, Written::default().open()]);
    let what = "profiles without an end mark, or cut";
    assert_eq!(both.notes, [(what.to_owned(), 1)]);
}

/// Each profile is small enough, and their sum is not.
#[test]
fn the_number_of_different_stacks_is_limited() {
    let of_thread = |tid| {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut encoder = ProfileEncoder::new(ThreadId(tid), Missing::default());
        for function in 0..530_000 {
            encoder.push(None, FunctionId(function), &CallSums::default());
        }
        for part in encoder.finish() {
            writer.profile(&part).unwrap();
        }
        opened(&writer.finish(&[]).unwrap())
    };
    let mut sum = ProfileSum::new().unwrap();
    sum.add(&of_thread(0)).unwrap();
    let error = sum.add(&of_thread(1)).unwrap_err();
    assert!(matches!(error, OpenError::TooManyStacks { .. }), "{error}");
}
