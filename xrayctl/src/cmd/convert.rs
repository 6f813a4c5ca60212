//! `xrayctl convert`: a trace as a file of another tool. Reports the data that the file cannot
//! hold.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ArgAction;
use clap::builder::{BoolishValueParser, PossibleValue};
use serde::Serialize;
use xray_trace::analysis::{Filter, Waits};
use xray_trace::event_format::EventOptions;
use xray_trace::model::{Profile, Trace};
use xray_trace::sink::{
    self, EventSink, FORMATS, Format as TraceFormat, ProfileSink, Report, Sink,
};

use crate::args::Format;
use crate::failure::Failure;
use crate::input::{self, Logs};
use crate::inputs::Inputs;
use crate::log::Log;
use crate::output::unrecorded::Unrecorded;
use crate::output::{Console, Tone, units};
use crate::output_folder::OutputFolder;
use crate::trace_file::Overwrite;
use crate::user_events::UserEventArgs;
use crate::whole_file::WholeFile;

const EXAMPLES: &str = "\
Examples:
  xrayctl convert run.xtrace -o run.json
  xrayctl convert run.xtrace -o log.bin --to fdr
  xrayctl convert run.xtrace -o run.parquet --event-format 'order=id:u64,price:f64'
  xrayctl convert xray-log.server.KHpRsM -m server -o run.json
  xrayctl convert xray-log.server.KHpRsM -m server -f yaml -y | less   like llvm-xray";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    /// The file to write, or for some formats the directory; - is standard output
    #[arg(short, long, value_name = "OUT", default_value = "-")]
    output: PathBuf,
    /// The format; without this, the format of the extension of OUT, or raw for standard output,
    /// as in llvm-xray
    #[arg(short = 'f', long, visible_alias = "output-format", value_name = "FORMAT",
          value_parser = clap::builder::PossibleValuesParser::new(FORMATS.iter().map(described)))]
    to: Option<String>,
    /// Accepted because llvm-xray has it; names of functions are always written where known
    #[arg(short = 'y', long)]
    symbolize: bool,
    /// Write demangled names of functions (the default)
    #[arg(long, overrides_with = "no_demangle")]
    demangle: bool,
    /// Write the linker's symbols of functions, instead of their demangled names
    #[arg(long, overrides_with = "demangle")]
    no_demangle: bool,
    /// Write the records of all threads in order of time, if the format has an order; with false,
    /// one thread after the other
    #[arg(short, long, value_name = "BOOL", default_value = "true", default_missing_value = "true",
          num_args = 0..=1, require_equals = true, action = ArgAction::Set,
          value_parser = BoolishValueParser::new())]
    sort: bool,
    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    user_events: UserEventArgs,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    logs: Logs,
}

/// The result of a conversion.
#[derive(Debug, Serialize)]
struct Converted {
    file: String,
    format: &'static str,
    calls: u64,
    bytes: u64,
    left_out: Vec<LeftOut>,
}

/// Data that the format cannot hold, or holds in another form.
#[derive(Debug, Serialize)]
struct LeftOut {
    what: String,
    count: u64,
}

/// The contents of one file, in a format that has a place for them.
#[derive(Debug)]
enum Job<'a> {
    Events(&'a Trace, &'a dyn Sink),
    /// With a selection of user events, and the fields in their data.
    SelectedEvents(&'a Trace, &'a dyn EventSink, EventOptions),
    Sums(&'a Profile, &'a dyn ProfileSink),
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let format = args.trace_format()?;
    args.check_user_events(format)?;
    if args.output == Path::new("-") {
        return args.print(format, console);
    }
    input::refuse_inputs(&args.output, &args.inputs.paths())?;
    let overwrite = if args.force {
        Overwrite::Yes
    } else {
        Overwrite::No
    };
    // The destination is opened before the input is read, so that a typo is found at once.
    let (mut report, bytes, unrecorded) = match format {
        TraceFormat::File(sink) => {
            let output = WholeFile::open(&args.output, overwrite)?;
            let log = args.open(console)?;
            let job = args.job(&log, sink)?;
            let (report, bytes) = output.write_with(|out| job.write(out))?;
            (report, bytes, unrecorded(format, log.tables()))
        }
        TraceFormat::Folder(sink) => {
            let output = OutputFolder::create(&args.output)?;
            let Log::Trace(opened) = args.open(console)? else {
                return Err(args.no_events(format.name()).into());
            };
            let options = args.user_events.options_for(&opened.trace)?;
            let (report, bytes) = output.write_with(|folder| match sink.of_events() {
                Some(sink) => sink.write(&opened.trace, &options, folder),
                None => sink.write(&opened.trace, folder),
            })?;
            (report, bytes, unrecorded(format, &opened.trace))
        }
    };
    report.left_out.extend(unrecorded);
    let converted = Converted {
        file: args.output.display().to_string(),
        format: format.name(),
        calls: report.calls,
        bytes,
        left_out: report
            .left_out
            .into_iter()
            .map(|(what, count)| LeftOut { what, count })
            .collect(),
    };
    if args.format.json {
        return console.json(&converted);
    }
    console.show(|out, look| {
        let Converted {
            file,
            format,
            calls,
            bytes,
            left_out,
        } = &converted;
        let (calls, bytes) = (units::counted(*calls, "call"), units::bytes(*bytes));
        writeln!(out, "{file}: {calls} as {format}, {bytes}")?;
        for LeftOut { what, count } in left_out {
            let line = not_as_it_was(what, *count);
            writeln!(out, "  {}", look.paint(Tone::Warning, &line))?;
        }
        Ok(())
    })
}

/// Data that was left unrecorded on purpose, if the format cannot note it. Only our own format can.
fn unrecorded(format: TraceFormat, trace: &Trace) -> Vec<(String, u64)> {
    let format = format.name();
    if format == "xtrace" {
        return Vec::new();
    }
    let unrecorded = Unrecorded::new(trace, &Filter::default());
    let mut left_out = unrecorded.map_or_else(Vec::new, |unrecorded| unrecorded.left_out());
    let switches = match format {
        "perfetto" => 0,
        _ => trace.context_switches(),
    };
    if switches > 0 {
        left_out.push(("context switches of threads".to_owned(), switches));
    }
    if let Some(Waits { waited_ns, .. }) = Waits::new(trace, &Filter::default()) {
        let what = "time for which threads waited for xrayd, in nanoseconds";
        left_out.push((what.to_owned(), waited_ns));
    }
    left_out
}

fn not_as_it_was(what: &str, count: u64) -> String {
    format!("changed or left out: {what} ({})", units::count(count))
}

/// A format in the help.
fn described(format: &TraceFormat) -> PossibleValue {
    let ends = format.extensions().iter().map(|end| format!(".{end}"));
    let ends = ends.collect::<Vec<_>>().join(", ");
    let value = PossibleValue::new(format.name());
    // The names of `llvm-xray`.
    let value = match format.name() {
        "chrome" => value.alias("trace_event"),
        "basic" => value.alias("raw"),
        _ => value,
    };
    value.help(format!("{} ({ends})", format.about()))
}

// === impl Job ===

impl Job<'_> {
    fn write(&self, output: &mut dyn Write) -> io::Result<Report> {
        match self {
            Self::Events(trace, sink) => sink.write(trace, output),
            Self::SelectedEvents(trace, sink, options) => sink.write(trace, options, output),
            Self::Sums(profile, sink) => sink.write(profile, output),
        }
    }
}

// === impl Args ===

impl Args {
    /// Writes the trace to standard output, and notes the data that the format cannot hold.
    fn print(&self, format: TraceFormat, console: &mut Console) -> anyhow::Result<()> {
        let usage = |what: &str| Err(Failure::Usage(what.to_owned()).into());
        let TraceFormat::File(sink) = format else {
            return usage(&format!(
                "the format {} is a directory: give -o OUT",
                format.name()
            ));
        };
        if self.format.json {
            return usage("standard output cannot have both the trace and --json: give -o OUT");
        }
        if console.is_terminal() && !sink.is_text() {
            return usage(&format!(
                "a terminal cannot show the format {}: give -o OUT, or a text format with --to",
                format.name()
            ));
        }
        let log = self.open(console)?;
        let job = self.job(&log, sink)?;
        let mut report = Report::default();
        console.show(|out, _| {
            report = job.write(out)?;
            Ok(())
        })?;
        report.left_out.extend(unrecorded(format, log.tables()));
        for (what, count) in report.left_out {
            console.note(&not_as_it_was(&what, count));
        }
        Ok(())
    }

    fn open(&self, console: &Console) -> anyhow::Result<Log> {
        let log = self.inputs.open_any(&self.logs, console)?;
        Ok(if self.no_demangle {
            log.with_symbols_as_names()
        } else {
            log
        })
    }

    /// The contents of the log in a format of one file.
    fn job<'a>(&self, log: &'a Log, sink: &'a dyn Sink) -> Result<Job<'a>, Failure> {
        Ok(match (log, sink.of_events(), sink.of_profile()) {
            (Log::Trace(opened), Some(sink), _)
                if !self.user_events.is_empty() || !opened.trace.event_formats().is_empty() =>
            {
                let options = self.user_events.options_for(&opened.trace)?;
                Job::SelectedEvents(&opened.trace, sink, options)
            }
            (Log::Trace(opened), _, _) => Job::Events(&opened.trace, sink),
            (Log::Profile(_), _, Some(_)) if !self.user_events.is_empty() => {
                let file = self.inputs.name().display().to_string();
                return Err(Failure::Usage(format!(
                    "{file} is a profile, which has sums of calls but no events: leave out \
                     --event-format and --where"
                )));
            }
            (Log::Profile(opened), _, Some(sink)) => Job::Sums(&opened.profile, sink),
            (Log::Profile(_), _, None) => return Err(self.no_events(sink.name())),
        })
    }

    /// Refuses the options about user events if the format has no place for fields.
    fn check_user_events(&self, format: TraceFormat) -> Result<(), Failure> {
        if self.user_events.is_empty() || format.has_fields() {
            return Ok(());
        }
        let formats = FORMATS.iter().filter(|format| format.has_fields());
        let names = formats.map(TraceFormat::name).collect::<Vec<_>>();
        let (format, names) = (format.name(), names.join(", "));
        Err(Failure::Usage(format!(
            "the format {format} has no place for fields of events, so --event-format and --where \
             do not work with it: give --to with one of {names}"
        )))
    }

    /// The error for a profile in a format of events.
    fn no_events(&self, format: &str) -> Failure {
        let formats = FORMATS
            .iter()
            .filter(|format| format.of_profile().is_some());
        let names = formats
            .map(TraceFormat::name)
            .collect::<Vec<_>>()
            .join(", ");
        let file = self.inputs.name().display().to_string();
        Failure::Usage(format!(
            "{file} is a profile, which has sums of calls but no events for {format}: give --to with one of {names}"
        ))
    }

    fn trace_format(&self) -> Result<TraceFormat, Failure> {
        let found = match &self.to {
            Some(name) => sink::by_name(match name.as_str() {
                "trace_event" => "chrome",
                "raw" => "basic",
                name => name,
            }),
            None if self.output == Path::new("-") => sink::by_name("basic"),
            None => sink::by_extension(&self.output),
        };
        let found = found.map(|format| match format {
            TraceFormat::File(sink) if !self.sort => {
                TraceFormat::File(sink.by_thread().unwrap_or(sink))
            }
            format => format,
        });
        found.ok_or_else(|| {
            let names = FORMATS.iter().map(TraceFormat::name).collect::<Vec<_>>();
            let (output, names) = (self.output.display(), names.join(", "));
            Failure::Usage(format!(
                "the extension of {output} is of no known format: give --to with one of {names}"
            ))
        })
    }
}
