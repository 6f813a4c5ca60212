//! Whole traces and profiles of every format. The target opens them, computes every analysis and
//! writes every export.
//!
//! The memory of an analysis is bounded by the size of the trace. The length of an export is not,
//! because the input can ask for any length. So the target discards exports.
#![no_main]

mod mend;

use std::fs::File;
use std::io::{self, Seek as _, Write};

use libfuzzer_sys::fuzz_target;
use xray_trace::analysis::{
    Account, AccountOptions, Direction, Filter, Graph, GroupBy, Order, Shown, Siblings, Side,
    SortBy, StackRoots, StackTrie, Step, Steps, Tree, account,
};
use xray_trace::container::MAGIC;
use xray_trace::llvm::Mode;
use xray_trace::model::Trace;
use xray_trace::sink::{FORMATS, Folder, Format, Report};
use xray_trace::source::{Options, open, open_profile};

use mend::mend;

fuzz_target!(|input: &[u8]| {
    for mode in [Mode::Strict, Mode::Salvage] {
        read(input, mode);
    }
    if input.starts_with(&MAGIC) {
        read(&mend(input), Mode::Strict);
    }
});

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("room for the input");
    file.rewind().expect("a file has a beginning");
    file
}

fn read(bytes: &[u8], mode: Mode) {
    let options = Options {
        mode,
        ..Options::default()
    };
    match open(file_of(bytes), &options) {
        Ok(opened) => {
            answer(&opened.trace);
            export(&opened.trace);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match open_profile(file_of(bytes), &options) {
        Ok(opened) => {
            for format in FORMATS.iter().filter_map(Format::of_profile) {
                let report = format.write(&opened.profile, &mut Taker);
                let _: Report = report.expect("a taker takes everything");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn answer(trace: &Trace) {
    answer_in(trace, &Filter::default());
    // A window begins with the calls that the trace lists as open, and that list may be wrong.
    let mut ticks = trace.blocks().iter().map(|block| block.last);
    let since = ticks.next();
    let until = ticks.next_back();
    for (since, until) in [(since, None), (since, until), (None, until)] {
        let filter = Filter {
            since,
            until,
            ..Filter::default()
        };
        answer_in(trace, &filter);
    }
}

fn answer_in(trace: &Trace, filter: &Filter) {
    let mut entered = 0_u64;
    for steps in Steps::of_wanted(trace, filter) {
        let mut open = 0_u64;
        for step in steps {
            match step {
                Step::Enter(call) => {
                    open += 1;
                    entered += u64::from(filter.wants_call(&call));
                }
                Step::Leave(_) => open = open.checked_sub(1).expect("what is left was entered"),
                Step::Data(_) | Step::Lost { .. } => {}
            }
        }
        assert_eq!(open, 0, "every call ends");
    }
    for by in [
        GroupBy::Function,
        GroupBy::Thread,
        GroupBy::Process,
        GroupBy::Module,
    ] {
        let options = AccountOptions {
            by,
            ..AccountOptions::default()
        };
        let mut table: Account = account(trace, filter, options);
        table.sort(trace, SortBy::Id, Direction::Ascending);
        let calls = table.rows.iter().map(|row| row.calls).sum::<u64>();
        assert_eq!(calls, entered, "{by:?}");
    }
    let _ = Graph::new(trace, filter, Siblings::default());
    let mut stacks = StackTrie::default();
    let _ = stacks.add(
        trace,
        filter,
        Siblings::default(),
        StackRoots::PerThread,
        Side::Before,
    );
    let lines = Tree::new(trace, filter, Shown::default(), Order::ByTime).count();
    assert!(lines as u64 >= entered, "{lines} lines of {entered} calls");
}

/// Discards its input.
struct Taker;

fn export(trace: &Trace) {
    let mut calls = None;
    for format in FORMATS {
        let mut to = Taker;
        let report: Report = match format {
            Format::File(sink) => sink.write(trace, &mut to),
            Format::Folder(sink) => sink.write(trace, &mut to),
        }
        .expect("a taker takes everything");
        // LLVM's formats leave out functions that the trace does not describe.
        if !["fdr", "basic", "yaml", "profile"].contains(&format.name()) {
            let first = *calls.get_or_insert(report.calls);
            assert_eq!(report.calls, first, "{}", format.name());
        }
    }
}

// === impl Taker ===

impl Write for Taker {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Folder for Taker {
    fn begin(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn current(&mut self) -> &mut (dyn Write + Send) {
        self
    }
}
