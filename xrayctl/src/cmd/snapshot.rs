//! `xrayctl snapshot`: the events in the rings and in the daemon at one moment, as a trace file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use xrayd_proto::v1::{FetchTraceRequest, StatusRequest, TraceChunk};

use crate::args::Format;
use crate::client::{Daemon, Rpc};
use crate::failure::{self, Failure};
use crate::output::trace_summary::OverwrittenEvents;
use crate::output::{Console, streamed, text, units};
use crate::process::OnlyProcess;
use crate::progress::Progress;
use crate::recording::Counts;
use crate::trace_file::{Overwrite, Tally, Unfinished};
use crate::trace_output::{TraceOutput, is_standard, refuse_json};

const EXAMPLES: &str = "\
snapshot does not stop the process. It also works on hung processes, and on terminated ones until
the process is detached or another process takes its place. A call that is open at the end of the
snapshot is in it from its beginning on, if its entry was not overwritten. `xrayctl report --open`
shows such calls.

Without --pid, snapshot writes every attached process. With several processes, each gets a file of
its own, with the pid in its name, and a moment of its own. Processes that are followed from another
one are in the file of that one. With --all-processes, one file has all processes up to the same
moment.

With -o -, snapshot writes the trace of one process, or of --all-processes, to standard output,
which must not be a terminal. The summary goes to standard error then. Such a trace has no index of
time; every command reads it without one.

Examples:
  xrayctl snapshot -o now.xtrace
  xrayctl snapshot --all-processes --last 1s -o now.xtrace
  xrayctl snapshot --pid 1234 --last 100ms -o now.xtrace --force
  xrayctl snapshot --pid 1234 -o - | xrayctl report --open -";

/// The pid that stands for every attached process.
const EVERYBODY: u32 = 0;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    process: OnlyProcess,
    /// Write every attached process into one file, up to the same moment
    #[arg(long, conflicts_with_all = ["process", "pid"])]
    all_processes: bool,
    /// Write only this last time, like 100ms or 5s; without this, all events that are there
    #[arg(long, value_name = "TIME", value_parser = crate::parse::duration)]
    last: Option<Duration>,
    /// The file to write, or - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Snapshots {
    files: Vec<Snapshot>,
}

/// A snapshot in its file.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    /// 0 for every attached process.
    pid: u32,
    file: String,
    events: u64,
    calls: u64,
    threads: u64,
    processes: u64,
    duration_ns: u64,
    lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    overwritten: Option<OverwrittenEvents>,
    bytes: u64,
    /// The time until the events of all processes were copied.
    copied_within_ns: u64,
}

/// The contents of a snapshot, as the daemon has counted them.
#[derive(Debug)]
struct Taken {
    counts: Counts,
    copied_within_ns: u64,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    refuse_json(&args.output, args.format)?;
    let pid = args.process.find()?;
    let mut rpc = daemon.connect().await?;
    let pids = match pid {
        Some(pid) => vec![pid],
        None => attached(&mut rpc).await?,
    };
    let pids = match args.all_processes {
        true => vec![EVERYBODY],
        false => pids,
    };
    let overwrite = if args.force {
        Overwrite::Yes
    } else {
        Overwrite::No
    };
    let several = pids.len() > 1;
    if several && is_standard(&args.output) {
        let what = "several processes are attached, and -o - takes one trace: name a process, or \
                    give --all-processes";
        return Err(Failure::Usage(what.to_owned()).into());
    }
    let mut outputs = Vec::new();
    for pid in pids {
        let path = if several {
            with_pid(&args.output, pid)
        } else {
            args.output.clone()
        };
        outputs.push((pid, TraceOutput::open(&path, overwrite)?));
    }
    let mut files = Vec::new();
    for (pid, mut output) in outputs {
        let progress = Progress::spinner(console, "taking a snapshot");
        let taken = take(&mut rpc, pid, args.last, &mut output, &progress).await;
        let taken = taken.with_context(|| match pid {
            EVERYBODY => "cannot take a snapshot".to_owned(),
            pid => format!("cannot take a snapshot of {pid}"),
        })?;
        drop(progress);
        let mut output = match output {
            TraceOutput::File(file) => file,
            TraceOutput::Standard(_) => {
                console.note(&streamed::summary(&taken.counts));
                return Ok(());
            }
        };
        let tally = output.finish_trace(Unfinished::Leave)?;
        let copied_within_ns = taken.copied_within_ns;
        files.push(Snapshot::new(pid, output.path(), &tally, copied_within_ns));
    }
    if args.format.json {
        return console.json(&Snapshots { files });
    }
    console.show(|out, _| {
        files
            .iter()
            .try_for_each(|taken| writeln!(out, "{}", taken.line()))
    })
}

/// Process ids of all attached processes, except for processes that are followed from others.
///
/// # Errors
/// No process is attached.
pub(crate) async fn attached(rpc: &mut Rpc) -> anyhow::Result<Vec<u32>> {
    let response = rpc.get_status(StatusRequest { pid: 0 }).await;
    let response = response.map_err(|status| failure::from_status(&status))?;
    let pids: BTreeSet<u32> = response
        .into_inner()
        .processes
        .iter()
        .map(|process| {
            let kinship = process.kinship.as_ref();
            kinship.map_or(process.pid, |kinship| kinship.root)
        })
        .collect();

    if pids.is_empty() {
        return Err(Failure::NothingMatched("no process is attached".to_owned()).into());
    }
    Ok(pids.into_iter().collect())
}

/// Writes a snapshot.
async fn take(
    rpc: &mut Rpc,
    pid: u32,
    last: Option<Duration>,
    output: &mut TraceOutput,
    progress: &Progress,
) -> anyhow::Result<Taken> {
    let failed = |status: tonic::Status| failure::from_status(&status);
    let last_ns = last.map_or(0, |last| u64::try_from(last.as_nanos()).unwrap_or(u64::MAX));
    let request = FetchTraceRequest { pid, last_ns };
    let response = rpc.fetch_trace(request).await;
    let mut chunks = response.map_err(failed)?.into_inner();
    let mut counts = Counts::default();
    let mut begun = None;
    while let Some(chunk) = chunks.message().await.map_err(failed)? {
        let TraceChunk {
            data,
            events,
            lost,
            reader_lost: _,
            copied_within_ns,
            entries: _,
            indexed: _,
            threads_without_runs: _,
            without_runs_because: _,
            waited_ns: _,
            ended_early: _,
            begins_file: _,
            sums: _,
            position: _,
            continues: _,
        } = chunk;
        if begun.replace(copied_within_ns).is_none() {
            output.begin()?;
        }
        tokio::task::block_in_place(|| output.write(&data))?;
        counts = Counts {
            events,
            lost,
            bytes: counts.bytes + data.len() as u64,
            ..Counts::default()
        };
        progress.recorded(events, lost, counts.bytes);
    }
    Ok(Taken {
        counts,
        copied_within_ns: begun.context("the daemon sent no snapshot")?,
    })
}

/// The name with the pid before its extension: `now-1234.xtrace`.
fn with_pid(path: &Path, pid: u32) -> PathBuf {
    let mut name = OsString::from(path.file_stem().unwrap_or_default());
    name.push(format!("-{pid}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

// === impl Snapshot ===

impl Snapshot {
    pub(crate) fn new(pid: u32, path: &Path, tally: &Tally, copied_within_ns: u64) -> Self {
        Self {
            pid,
            file: path.display().to_string(),
            events: tally.events,
            calls: tally.calls,
            threads: tally.threads,
            processes: tally.processes,
            duration_ns: tally.duration_ns,
            lost: tally.lost,
            overwritten: tally.overwritten,
            bytes: tally.bytes,
            copied_within_ns,
        }
    }

    pub(crate) fn line(&self) -> String {
        let several = match self.processes {
            0 | 1 => String::new(),
            many => format!(
                " of {many} processes, copied within {},",
                units::time(self.copied_within_ns)
            ),
        };
        let overwritten = self
            .overwritten
            .map(|overwritten| format!(", {}", overwritten.words()));
        format!(
            "{}: {} of {}{several} in {}, {} lost{}, {}",
            text::printable(&self.file),
            units::counted(self.events, "event"),
            units::counted(self.threads, "thread"),
            units::time(self.duration_ns),
            units::count(self.lost),
            overwritten.unwrap_or_default(),
            units::bytes(self.bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_goes_before_the_extension() {
        for (path, expected) in [
            ("a/now.xtrace", "a/now-7.xtrace"),
            ("now", "now-7"),
            ("a.b/x.y.z", "a.b/x.y-7.z"),
        ] {
            assert_eq!(with_pid(Path::new(path), 7), Path::new(expected));
        }
    }
}
