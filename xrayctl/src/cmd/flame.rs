//! `xrayctl flame`: an interactive flame graph of a trace, or of the difference of two traces.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use inferno::flamegraph::{self, Direction, Options};
use xray_trace::analysis::{Side, StackRoots, StackTrie};
use xray_trace::source::CommonUnit;

use crate::failure::Failure;
use crate::gathering::{Gathering, Time};
use crate::input::{self, Logs, Selection, Unpaired};
use crate::inputs::{Inputs, add_unit};
use crate::output::stacks::{self, Folded};
use crate::output::{Console, units};

pub(crate) const EXAMPLE: &str = "\
Example:
  $ xrayctl flame run.xtrace -o run.svg
  run.svg: a flame graph of 4 stacks, 45.00 ms

Open the file in a browser: click to zoom, Ctrl-F to search. With --diff, functions that take longer
than before are red, and those that take less are blue.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    /// The SVG file to write; - is standard output
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Compare with this trace, by the names of functions, and draw this one
    #[arg(long, value_name = "FILE")]
    diff: Option<PathBuf>,
    /// Draw callers above what they call
    #[arg(long)]
    icicle: bool,
    /// Draw the time for which threads had no processor: where they waited
    #[arg(long)]
    off_cpu: bool,
    /// Keep the stacks of threads apart
    #[arg(long)]
    per_thread: bool,
    /// The heading; without this, the names of the traces
    #[arg(long)]
    title: Option<String>,
    #[command(flatten)]
    unpaired: Unpaired,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    logs: Logs,
}

/// Keeps the error of the output, because the drawing library returns only a text of its own.
struct Remembering<'a> {
    out: &'a mut dyn Write,
    failed: Option<io::Error>,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let mut files = args.inputs.paths();
    files.extend(args.diff.as_deref());
    let output = input::destined(&args.output, &files)?;
    let before = args.inputs.name();
    let inputs: Vec<&Path> = std::iter::once(before.as_path())
        .chain(args.diff.as_deref())
        .collect();
    let roots = if args.per_thread {
        StackRoots::PerThread
    } else {
        StackRoots::Together
    };
    let gathering = Gathering {
        selection: &args.selection,
        unpaired: args.unpaired,
        roots,
        time: if args.off_cpu {
            Time::OffCpu
        } else {
            Time::All
        },
    };
    let mut stacks = StackTrie::default();
    let (mut calibrated, mut unit) = (true, CommonUnit::default());
    for (file, side) in inputs.iter().zip([Side::Before, Side::After]) {
        let log = match side {
            Side::Before => args.inputs.open_any(&args.logs, console)?,
            Side::After => args.logs.open_any(file, console)?,
        };
        add_unit(&log, &mut unit).map_err(|error| {
            let file = file.display();
            Failure::Usage(format!(
                "cannot compare {file} with the other side: {error}"
            ))
        })?;
        calibrated &= gathering.add(file, &log, side, &mut stacks, console)?;
    }
    if let Some(note) = stacks::note(&stacks) {
        console.note(&note);
    }
    let unknown = stacks.unknown_off_cpu();
    if unknown > 0 {
        let calls = units::counted(unknown, "call");
        console.note(&format!(
            "{calls} have no time here: it is not known when their threads had a processor"
        ));
    }
    let lines = stacks::folded(&stacks, Folded::SelfTime, args.diff.is_some());
    if lines.is_empty() {
        let what = if args.off_cpu {
            "no call of which it is known had to wait for a processor or anything else"
        } else {
            "no call took any time"
        };
        return Err(Failure::NothingMatched(what.to_owned()).into());
    }
    let mut options = Options::default();
    options.title = args.title.clone().unwrap_or_else(|| {
        let names = inputs.iter().map(|input| input.display().to_string());
        let names = names.collect::<Vec<_>>().join(" → ");
        match args.off_cpu {
            true => format!("{names}: time without a processor"),
            false => names,
        }
    });
    options.count_name = if calibrated { "ns" } else { "ticks" }.to_owned();
    if args.icicle {
        options.direction = Direction::Inverted;
    }
    let printed = output.is_standard_output();
    output
        .write(console, |out, _| {
            let lines = lines.iter().map(String::as_str);
            let mut out = Remembering { out, failed: None };
            let drawn = flamegraph::from_lines(&mut options, lines, &mut out);
            drawn.map_err(|error| out.failed.unwrap_or_else(|| io::Error::other(error)))
        })
        .context("the flame graph cannot be drawn")?;
    let side = usize::from(args.diff.is_some());
    let total: u64 = stacks
        .nodes()
        .iter()
        .map(|node| node.counts[side].self_ns)
        .sum();
    let total = if calibrated {
        units::time(total)
    } else {
        units::counted(total, "tick")
    };
    let stacks = units::counted(lines.len() as u64, "stack");
    let off = if args.off_cpu {
        " without a processor"
    } else {
        ""
    };
    let line = format!("a flame graph of {stacks}, {total}{off}");
    if printed {
        console.note(&line);
        return Ok(());
    }
    console.line(&format!("{}: {line}", args.output.display()))
}

// === impl Remembering ===

impl Remembering<'_> {
    fn remember<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|error| {
            let kind = error.kind();
            self.failed = Some(error);
            kind.into()
        })
    }
}

impl Write for Remembering<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.remember(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.remember(flushed)
    }
}
