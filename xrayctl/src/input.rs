//! Opens the traces that commands read, whatever their format, and selects the wanted part of them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Seek as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use xray_trace::analysis::{self, Filter, Notes, PatternError, Siblings};
use xray_trace::instr_map::{FunctionNames, InstrMap, MapFunction, SourceMap, without_parameters};
use xray_trace::llvm::{Format, Mode};
use xray_trace::model::{Ticks, Trace};
use xray_trace::source::{self, KnownFunction, OpenError, Opened, OpenedProfile, Options};

use crate::failure::Failure;
use crate::log::Log;
use crate::output::trace_summary::TraceSummary;
use crate::output::{Console, Look, text, units, unmatched_exits};
use crate::parse;
use crate::suggest;
use crate::trace_file::Overwrite;
use crate::whole_file::WholeFile;

/// The most exits without an entry that are listed one by one.
const MAX_UNMATCHED_EXITS: usize = 20;

/// Which part of a trace is wanted.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Which part")]
pub(crate) struct Selection {
    /// Only threads with this id or name, which may be a glob
    #[arg(long, value_name = "TID|NAME")]
    thread: Vec<String>,
    /// Only functions with this name, which may be a glob
    #[arg(long, value_name = "NAME")]
    function: Vec<String>,
    /// Only calls that begin at least this long after the trace's first event, like 1.5s
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    since: Option<Duration>,
    /// Only calls that begin less than this long after the trace's first event
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    until: Option<Duration>,
}

/// What llvm-xray can be told about logs that are not in order.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Unpaired {
    /// List exits without an entry one by one, up to 20 of a trace; without this, they are counted.
    /// They are no error
    #[arg(short, long)]
    pub(crate) keep_going: bool,
    /// End calls without an exit when their caller exits, as if they had ended in a sibling call,
    /// except calls that the trace says were left; for old logs, which have no tail exits
    #[arg(short, long)]
    pub(crate) deduce_sibling_calls: bool,
}

/// Where text is written to.
#[derive(Debug, clap::Args)]
pub(crate) struct Destination {
    /// The file to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

/// An opened destination of text: a file, or `None` for standard output.
#[derive(Debug)]
pub(crate) struct Destined(Option<WholeFile>);

/// How a log of LLVM's is read. Our own format needs none of it.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Logs of LLVM's runtime")]
pub(crate) struct Logs {
    /// The program of the log, or its instrumentation map in YAML, for the names of functions; can
    /// be given again for each library with sleds, in the order in which the program loaded them
    #[arg(
        short = 'm',
        long = "instr_map",
        visible_alias = "instr-map",
        value_name = "FILE"
    )]
    instr_map: Vec<PathBuf>,
    /// Read a damaged log or import on behind the damage, and list what was left out
    #[arg(long)]
    salvage: bool,
}

// === impl Logs ===

impl Logs {
    /// The options for another program's log. A map of its own takes the place of the common one.
    pub(crate) fn of_program(&self, instr_map: Option<&PathBuf>) -> Self {
        Self {
            instr_map: instr_map.map_or_else(|| self.instr_map.clone(), |own| vec![own.clone()]),
            salvage: self.salvage,
        }
    }

    /// Opens a trace of any format, and notes the data that could not be kept.
    pub(crate) fn open(&self, path: &Path, console: &Console) -> anyhow::Result<Trace> {
        match self.read(path, console)? {
            (Log::Trace(opened), _) => Ok(opened.trace),
            (Log::Profile(_), _) => anyhow::bail!(
                "{} is a profile, which has sums of calls but no events; account, diff, stack, flame, info, convert, view and report --html read it",
                path.display()
            ),
        }
    }

    /// Opens a trace of any format or a profile, and notes the data that could not be kept.
    pub(crate) fn open_any(&self, path: &Path, console: &Console) -> anyhow::Result<Log> {
        self.open_sized(path, console).map(|(log, _)| log)
    }

    /// The same, with the size of the file in bytes.
    pub(crate) fn open_sized(&self, path: &Path, console: &Console) -> anyhow::Result<(Log, u64)> {
        let (log, bytes) = self.read(path, console)?;
        if let Log::Profile(opened) = &log
            && opened.format != Format::Xtrace
        {
            let path = path.display().to_string();
            let what =
                "a profile without the rate of its counter: times are in ticks, not nanoseconds";
            console.note(&format!("{}: {what}", text::printable(&path)));
        }
        Ok((log, bytes))
    }

    /// Opens a trace of any format or a profile. Returns its size in bytes, too.
    pub(crate) fn load(&self, path: &Path) -> anyhow::Result<(Log, u64)> {
        let cannot = || format!("cannot read {}", path.display());
        let options = self.options()?;
        let file = open_input(path).with_context(cannot)?;
        let metadata = file.metadata().with_context(cannot)?;
        if metadata.is_dir() {
            let opened = source::open_folder(path, &options).with_context(cannot)?;
            let bytes = size_of_files(path).with_context(cannot)?;
            return Ok((Log::Trace(opened), bytes));
        }
        let bytes = metadata.len();
        let again = file.try_clone().with_context(cannot)?;
        let log = match source::open(file, &options) {
            Err(OpenError::Profile) => source::open_profile(again, &options).map(Log::Profile),
            opened => opened.map(Log::Trace),
        };
        Ok((log.with_context(cannot)?, bytes))
    }

    fn read(&self, path: &Path, console: &Console) -> anyhow::Result<(Log, u64)> {
        let (log, bytes) = self.load(path)?;
        let (Log::Trace(Opened { notes, .. }) | Log::Profile(OpenedProfile { notes, .. })) = &log;
        for (what, count) in notes {
            let path = path.display().to_string();
            let times = match count {
                1 => String::new(),
                count => format!(": {count}"),
            };
            console.note(&format!("{}: {what}{times}", text::printable(&path)));
        }
        Ok((log, bytes))
    }

    fn options(&self) -> anyhow::Result<Options> {
        let mut options = Options {
            mode: if self.salvage {
                Mode::Salvage
            } else {
                Mode::Strict
            },
            ..Options::default()
        };
        for (object, path) in (0..).zip(&self.instr_map) {
            let cannot = || format!("cannot read the instrumentation map of {}", path.display());
            let bytes = fs::read(path).with_context(cannot)?;
            let map = InstrMap::read(&bytes).with_context(cannot)?;
            // A map in YAML and a file without debug information have no source lines.
            let addresses = map.functions().iter().map(|function| function.address);
            let sources = SourceMap::parse(&bytes, addresses).unwrap_or_default();
            // The first map can have the ids of all objects already, as `extract` prints them.
            let map = match object {
                0 => map,
                object => InstrMap::of_process([(object, map)]).0,
            };
            let functions = map.functions().iter();
            options.objects.push(path.display().to_string());
            options.functions.extend(
                functions
                    .map(|function| (function.id.cast_signed(), known(&map, &sources, function))),
            );
        }
        Ok(options)
    }
}

fn known(map: &InstrMap, sources: &SourceMap, function: &MapFunction) -> KnownFunction {
    KnownFunction {
        symbol: function.symbol.as_ref().map(ToString::to_string),
        name: FunctionNames::Demangled.of(function),
        address: function.address,
        source: sources.lookup(function.address),
        sleds: u32::try_from(map.sleds_of(function).len()).unwrap_or(u32::MAX),
    }
}

// === impl Selection ===

impl Selection {
    /// The filter for a trace.
    pub(crate) fn filter(&self, trace: &Trace) -> anyhow::Result<Filter> {
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since >= until
        {
            let what = "--since must be before --until".to_owned();
            return Err(Failure::Usage(what).into());
        }
        let since = self.since.map(|since| tick_at(trace, since));
        let until = self.until.map(|until| tick_at(trace, until));
        let names = trace.threads().iter().map(|thread| thread.name.as_str());
        let threads = named(&self.thread, "thread", names, |name| {
            Filter::matching_threads(trace, name)
        })?;
        let names = trace.functions().iter();
        let names = names.map(|function| without_parameters(&function.name));
        let functions = named(&self.function, "function", names, |name| {
            Filter::matching_functions(trace, name)
        })?;
        Ok(Filter {
            threads,
            functions,
            since,
            until,
            ..Filter::default()
        })
    }

    /// The filter for a trace or a profile.
    pub(crate) fn filter_of(&self, log: &Log) -> anyhow::Result<Filter> {
        if matches!(log, Log::Profile(_)) && (self.since.is_some() || self.until.is_some()) {
            let what =
                "--since and --until do not work with a profile, which has no times of calls";
            return Err(Failure::Usage(what.to_owned()).into());
        }
        self.filter(log.tables())
    }
}

/// Ids of all things that one of the patterns matches; `None` without patterns. `names` are the
/// names to suggest for a pattern that matches nothing.
fn named<'a, T: Ord>(
    patterns: &[String],
    noun: &str,
    names: impl Iterator<Item = &'a str> + Clone,
    matching: impl Fn(&str) -> Result<BTreeSet<T>, PatternError>,
) -> anyhow::Result<Option<BTreeSet<T>>> {
    let mut found = BTreeSet::new();
    for pattern in patterns {
        let matched = matching(pattern).map_err(|error| Failure::Usage(error.to_string()))?;
        if matched.is_empty() {
            let wanted = without_parameters(pattern.trim_matches('*')).to_owned();
            let hint = suggest::hint(&[wanted], names);
            let what = format!("no {noun} of the trace matches {pattern:?}{hint}");
            return Err(Failure::NothingMatched(what).into());
        }
        found.extend(matched);
    }
    Ok((!patterns.is_empty()).then_some(found))
}

/// The first tick that is at least this long after the begin of the trace.
fn tick_at(trace: &Trace, after: Duration) -> Ticks {
    // The begin of a snapshot is the begin of the time that it shows. Calls that were open then
    // have begun at any time before it.
    let first = trace.blocks().iter().map(|block| block.first).min();
    let ns = |at: Option<Ticks>| at.map_or(0, |at| trace.clock().monotonic_ns(at));
    let before = ns(trace.begin()).saturating_sub(ns(first));
    let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
    Filter::tick_after(trace, after.saturating_add(before))
}

// === impl Unpaired ===

impl Unpaired {
    /// The treatment of calls without an exit.
    pub(crate) fn siblings(self) -> Siblings {
        if self.deduce_sibling_calls {
            Siblings::Deduced
        } else {
            Siblings::Closed
        }
    }

    /// Notes everything in a trace that is not an ordinary call.
    pub(crate) fn tell(
        self,
        file: &Path,
        trace: &Trace,
        filter: &Filter,
        notes: Notes,
        console: &Console,
    ) {
        let file = file.display().to_string();
        let mut lines = TraceSummary::new(&file, trace, notes).notes();
        if self.keep_going && notes.exits_without_entry > 0 {
            let exits = analysis::unmatched_exits(trace, filter, MAX_UNMATCHED_EXITS);
            let names = console.names();
            let exits = exits.iter();
            lines.extend(exits.map(|exit| unmatched_exits::line(exit, trace, names)));
            let more = notes
                .exits_without_entry
                .saturating_sub(MAX_UNMATCHED_EXITS as u64);
            if more > 0 {
                lines.push(format!("and {}", units::counted(more, "more such record")));
            }
        }
        for line in lines {
            console.note(&format!("{}: {line}", text::printable(&file)));
        }
    }
}

// === impl Destination ===

impl Destination {
    /// Opens the destination before there is anything to write. It replaces an existing file,
    /// unless that is one of the inputs.
    pub(crate) fn open(&self, inputs: &[&Path]) -> anyhow::Result<Destined> {
        destined(&self.output, inputs)
    }
}

/// Opens a file to write. The file may exist, but it must be none of the inputs. `-` is standard
/// output.
pub(crate) fn destined(output: &Path, inputs: &[&Path]) -> anyhow::Result<Destined> {
    if output == Path::new("-") {
        return Ok(Destined(None));
    }
    refuse_inputs(output, inputs)?;
    WholeFile::open(output, Overwrite::Yes).map(|file| Destined(Some(file)))
}

/// Fails if the output is one of the inputs, by whatever name.
pub(crate) fn refuse_inputs(output: &Path, inputs: &[&Path]) -> Result<(), Failure> {
    let file_id = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let there = file_id(output);
    if there.is_some() && inputs.iter().any(|input| file_id(input) == there) {
        let what = format!(
            "{} is an input, so it cannot be the output",
            output.display()
        );
        return Err(Failure::Usage(what));
    }
    Ok(())
}

/// Opens an input; `-` is standard input. The bytes of a pipe are stored first, because they are
/// read more than once.
pub(crate) fn open_input(path: &Path) -> io::Result<File> {
    let mut file = open_stream(path)?;
    let kind = file.metadata()?.file_type();
    if !(kind.is_fifo() || kind.is_socket() || file.is_terminal()) {
        return Ok(file);
    }
    let mut stored = tempfile::tempfile()?;
    io::copy(&mut file, &mut stored)?;
    stored.rewind()?;
    Ok(stored)
}

/// The size of all files in a folder, in bytes.
fn size_of_files(path: &Path) -> io::Result<u64> {
    let sizes = fs::read_dir(path)?.map(|entry| {
        let metadata = entry?.metadata()?;
        Ok(if metadata.is_file() {
            metadata.len()
        } else {
            0
        })
    });
    sizes.sum()
}

/// Opens an input that is read once from begin to end; `-` is standard input.
pub(crate) fn open_stream(path: &Path) -> io::Result<File> {
    if path == Path::new("-") {
        return Ok(io::stdin().as_fd().try_clone_to_owned()?.into());
    }
    File::open(path)
}

// === impl Destined ===

impl Destined {
    /// True for standard output.
    pub(crate) fn is_standard_output(&self) -> bool {
        self.0.is_none()
    }

    /// Writes the text that a function renders.
    pub(crate) fn write(
        self,
        console: &mut Console,
        render: impl FnOnce(&mut dyn io::Write, Look) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        match self.0 {
            None => console.show(render),
            Some(file) => {
                let look = Look {
                    names: console.names(),
                    ..Look::PLAIN
                };
                let ((), _) = file.write_with(|out| render(out, look))?;
                Ok(())
            }
        }
    }
}
