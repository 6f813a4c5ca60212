//! `xrayctl filter`: the calls that attached processes record, and the events that are kept.

use std::time::Duration;

use xrayd_proto::v1::Filter;

use crate::args::Format;
use crate::client::Daemon;
use crate::each_process::EachProcess;
use crate::output::{Console, per_process::PerProcess};
use crate::parse;
use crate::process::OnlyProcesses;
use crate::setting::{show_setting, update_setting};

const EXAMPLES: &str = "\
A new filter replaces the former one; options that are not given leave nothing out. Without options,
filter shows the filter in force.

The program applies --min-duration, --max-depth, --one-in, --inside and --thread before it writes an
event. A call that they leave out costs little and is counted (`left out` in status); nothing else
is known of it. The daemon applies --module, --from and --until after it has read the event.

Calls whose arguments are recorded, and calls in which the program emits custom or typed events, are
recorded however short they are. So are the calls that they are in. With --min-duration, the program
writes a call when it ends, or when something in it is written.

Without --pid, filter applies to every attached process.

Examples:
  xrayctl filter --pid 1234 --min-duration 100us
  xrayctl filter --inside 'ns::handle*' --max-depth 3 --one-in 100
  xrayctl filter --thread 'io-*' --thread 4711
  xrayctl filter --clear";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    process: OnlyProcesses,
    /// Record only calls that take at least this time
    #[arg(long, value_name = "TIME", value_parser = parse::positive_duration)]
    min_duration: Option<Duration>,
    /// Record only calls up to this depth, from 1 to 128; the outermost function that is on, or the
    /// outermost one of --inside, has depth 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
    max_depth: Option<u32>,
    /// Record the first of every N call trees of each thread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    one_in: Option<u32>,
    /// Record only calls of functions with this name or glob, and calls inside them; can be given
    /// several times
    #[arg(long, value_name = "NAME")]
    inside: Vec<String>,
    /// Record only threads with this id, or with a name that matches this glob; can be given
    /// several times
    #[arg(long, value_name = "THREAD")]
    thread: Vec<String>,
    /// Keep only events of this module: a file name (libfoo.so.1, libfoo.so or libfoo) or a glob;
    /// can be given several times
    #[arg(long, value_name = "MODULE")]
    module: Vec<String>,
    /// Keep only calls that begin at least this long from now
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    from: Option<Duration>,
    /// Keep only calls that begin less than this long from now
    #[arg(long, value_name = "TIME", value_parser = parse::positive_duration)]
    until: Option<Duration>,
    /// Remove the filter
    #[arg(long, conflicts_with_all = ["min_duration", "max_depth", "one_in", "inside", "thread", "module", "from", "until"])]
    clear: bool,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let wanted = wanted(&args);
    let mut each = EachProcess::find(&args.process.names(), console)?;
    let mut rpc = daemon.connect().await?;
    let set = async |pid| update_setting(&mut rpc, pid, wanted.clone()).await;
    let reports = each.run(console, set).await?.concat();
    show_setting(
        &PerProcess::new(wanted, reports),
        args.format,
        each,
        console,
    )
}

/// The filter to set; `None` to show the current one.
fn wanted(args: &Args) -> Option<Filter> {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, ns);
    let from_now = |time: Option<Duration>| time.map_or(0, |time| now.saturating_add(ns(time)));
    let filter = Filter {
        min_duration_ns: args.min_duration.map_or(0, ns),
        max_depth: args.max_depth.unwrap_or(0),
        one_in: args.one_in.filter(|n| *n > 1).unwrap_or(0),
        inside: args.inside.clone(),
        threads: args.thread.clone(),
        modules: args.module.clone(),
        from_wall_ns: from_now(args.from),
        until_wall_ns: from_now(args.until),
    };
    // `--one-in 1` keeps all trees, as the default filter does.
    let is_set = args.clear || args.one_in.is_some() || filter != Filter::default();
    is_set.then_some(filter)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_filter_that_keeps_everything_is_set_too() {
        let wanted = |line: &[&str]| {
            let line = ["filter"].iter().chain(line);
            wanted(&Line::try_parse_from(line).unwrap().args)
        };
        let one_in = |one_in| {
            Some(Filter {
                one_in,
                ..Filter::default()
            })
        };
        assert_eq!(wanted(&[]), None);
        assert_eq!(wanted(&["--clear"]), one_in(0));
        assert_eq!(wanted(&["--one-in", "1"]), one_in(0));
        assert_eq!(wanted(&["--one-in", "4"]), one_in(4));
    }
}
