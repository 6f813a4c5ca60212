//! The command line in clap's terms: the options that all commands share, and the list of commands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};
use xray_trace::analysis::{LeastTimes, Order};

use crate::cmd;
use crate::llvm_xray;
use crate::output::folded_lines::Folding;
use crate::output::{ColourChoice, Names};
use crate::parse;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  a failure without a code of its own, such as a file that cannot be written
  2  wrong usage of the command line
  3  nothing matched, such as a name that no function has
  4  refused; `xrayctl explain ID` explains the reason
  5  no daemon answers, or the daemon went away
  6  --strict was given, and events were lost";

/// Trace functions of running programs
#[derive(Debug, Parser)]
#[command(name = "xrayctl", version, after_help = EXIT_CODES, propagate_version = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    /// Be this tool: take its options, print its output, and exit with its codes
    ///
    /// This must be the first argument. A link named llvm-xray does the same.
    #[arg(long = "as", value_name = "TOOL", value_parser = [llvm_xray::NAME])]
    pub(crate) tool: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// Use the daemon at this socket, and no other
    ///
    /// Without this, xrayctl tries the user's daemon ($XDG_RUNTIME_DIR/xrayd.sock), then the
    /// system's (/run/xrayd/xrayd.sock). If neither answers, ps, doctor, functions --pid, record,
    /// watch, top, profile and count work without a daemon; profile --kept and count --kept do not.
    /// record -- CMD never uses a daemon.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "XRAYD_SOCKET",
        hide_env_values = true
    )]
    pub(crate) socket: Option<PathBuf>,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub(crate) color: ColourChoice,
    /// Print names of functions with LLVM's suffixes, such as '(.llvm.77)'; JSON always has them
    #[arg(long, global = true)]
    full_names: bool,
}

/// How a command shows what it found.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Format {
    /// Print JSON; docs/xrayctl.md describes it
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a tree of calls is printed as text.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct TreeLayout {
    /// Print the lines of all threads together, in order of time, and not thread by thread; JSON
    /// always has this order
    #[arg(long)]
    interleave: bool,
    /// Print a line for each call. Without this, consecutive calls of one function that called
    /// nothing are one line, if they have the same arguments and results; JSON always has every
    /// call
    #[arg(long)]
    unfold: bool,
}

/// The calls of a trace that are shown, by their times.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct TimesOfCalls {
    /// Show only calls that took at least this time, like 1ms
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "0")]
    min_duration: Duration,
    /// Show only calls in which their thread had a processor for at least this time
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "0")]
    min_on_cpu: Duration,
    /// Show only calls in which their thread had no processor for at least this time
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "0")]
    min_off_cpu: Duration,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List every process with sleds
    Ps(cmd::ps::Args),
    /// Check whether a process can be traced, and change nothing
    Doctor(cmd::doctor::Args),
    /// Attach to processes, and switch functions on if selectors are given
    Attach(cmd::attach::Args),
    /// List functions: id, module, name, source line, size, sleds, state, calls
    Functions(cmd::functions::Args),
    /// Switch functions on
    Enable(cmd::enable::Args),
    /// Switch functions off
    Disable(cmd::disable::Args),
    /// Change how events are kept
    Mode(cmd::mode::Args),
    /// Show the state and the counters of attached processes
    Status(cmd::status::Args),
    /// Record a process, or a program from its start, into a file
    Record(cmd::record::Args),
    /// Show calls as they happen, a line each
    Watch(cmd::watch::Args),
    /// Show the busiest functions of a process, live, on the whole screen
    Top(cmd::top::Args),
    /// Show which functions take the time, without keeping events
    Profile(cmd::profile::Args),
    /// Count calls in the program itself, and record nothing else
    Count(cmd::count::Args),
    /// Limit what tracing may cost, or show what it costs
    Budget(cmd::budget::Args),
    /// Choose which calls are recorded, and which events are kept
    Filter(cmd::filter::Args),
    /// Write the newest events into a file
    Snapshot(cmd::snapshot::Args),
    /// Wait for a condition, then take a snapshot or do other actions
    Trigger(cmd::trigger::Args),
    /// Show the table of functions, the slowest calls and the call tree of a trace
    Report(cmd::report::Args),
    /// Print the instrumentation map of a file, as llvm-xray does
    Extract(cmd::extract::Args),
    /// Show what is in a trace
    Info(cmd::info::Args),
    /// Show number and duration of the calls of a trace, by function
    Account(cmd::account::Args),
    /// Compare two traces or profiles, function by function
    Diff(cmd::diff::Args),
    /// Show the stacks of calls of a trace
    Stack(cmd::stack::Args),
    /// Show the call tree of a trace, thread by thread
    Tree(cmd::tree::Args),
    /// Draw the call graph of a trace in DOT
    Graph(cmd::graph::Args),
    /// Draw the difference of the call graphs of two traces in DOT
    GraphDiff(cmd::graph_diff::Args),
    /// Draw a flame graph of a trace
    Flame(cmd::flame::Args),
    /// Show a trace in a browser
    View(cmd::view::Args),
    /// Convert a trace into another format
    Convert(cmd::convert::Args),
    /// Print the records of one of LLVM's flight data recorder logs
    FdrDump(cmd::fdr_dump::Args),
    /// Switch all functions off, check the code of the process, and detach from it
    Detach(cmd::detach::Args),
    /// Switch off what a daemon that is gone has left on, without a daemon
    Off(cmd::off::Args),
    /// Check tracing policies, and put them in force
    Policy(cmd::policy::Args),
    /// List, fetch and remove what xray-relay has recorded for policies
    Recordings(cmd::recordings::Args),
    /// Show what users may do, and the rules of access
    Access(cmd::access::Args),
    /// Restart the daemon
    Daemon(cmd::daemon::Args),
    /// Explain the reason id of a refusal
    Explain(cmd::explain::Args),
    /// Print the completions for a shell
    Completions(cmd::completions::Args),
    /// Write the manual pages into a directory
    Man(cmd::man::Args),
}

/// Names of commands in other tools, and the command here that does the same. clap finds
/// misspelt names by itself.
const MEANT: [(&str, &str); 27] = [
    ("calltree", "tree"),
    ("capture", "record"),
    ("check", "doctor"),
    ("compare", "diff"),
    ("connect", "attach"),
    ("disconnect", "detach"),
    ("dump", "snapshot"),
    ("export", "convert"),
    ("flamegraph", "flame"),
    ("limit", "budget"),
    ("list", "ps"),
    ("live", "watch"),
    ("ls", "ps"),
    ("on", "enable"),
    ("open", "view"),
    ("processes", "ps"),
    ("run", "record"),
    ("show", "report"),
    ("start", "attach"),
    ("stat", "count"),
    ("stop", "detach"),
    ("summary", "info"),
    ("symbols", "functions"),
    ("tail", "watch"),
    ("trace", "record"),
    ("unpatch", "disable"),
    ("wait", "trigger"),
];

/// Adds a tip to the error for a command that does not exist: the command that does what the user
/// meant. It replaces clap's tip, a command with similar letters.
pub(crate) fn with_meant_command(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let word = word.to_lowercase();
    let Some((_, meant)) = MEANT.iter().find(|(other, _)| *other == word) else {
        return error;
    };
    error.remove(ContextKind::SuggestedSubcommand);
    let tip = format!("the subcommand that does this is called '{meant}'");
    error.insert(
        ContextKind::Suggested,
        ContextValue::StyledStrs(vec![tip.into()]),
    );
    error
}

// === impl Global ===

impl Global {
    /// The form of the names of functions in text.
    pub(crate) fn names(&self) -> Names {
        if self.full_names {
            Names::Full
        } else {
            Names::Short
        }
    }
}

// === impl TimesOfCalls ===

impl TimesOfCalls {
    pub(crate) fn least(&self) -> LeastTimes {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        LeastTimes {
            duration_ns: ns(self.min_duration),
            on_cpu_ns: ns(self.min_on_cpu),
            off_cpu_ns: ns(self.min_off_cpu),
        }
    }

    /// True if it has to be known when threads had a processor.
    pub(crate) fn need_runs(&self) -> bool {
        !self.min_on_cpu.is_zero() || !self.min_off_cpu.is_zero()
    }
}

// === impl TreeLayout ===

impl TreeLayout {
    /// The order of the lines of several threads.
    pub(crate) fn order(self) -> Order {
        if self.interleave {
            Order::ByTime
        } else {
            Order::ByThread
        }
    }

    /// The treatment of equal calls in a row.
    pub(crate) fn folding(self) -> Folding {
        if self.unfold {
            Folding::None
        } else {
            Folding::EqualCalls
        }
    }
}

/// Converts arguments from the spelling of llvm-xray to the usual one: `-all-stacks`, `--e=sum`,
/// `-keep-going=true`. Only arguments of the commands that llvm-xray has too are converted.
pub(crate) fn spelled(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let cli = Cli::command();
    let mut command = None;
    let mut verbatim = false;
    let spelled = args.filter_map(|arg| {
        let Some(text) = arg.to_str().filter(|_| !verbatim) else {
            return Some(arg);
        };
        let Some(command) = command else {
            if LLVM_XRAY.contains(&text) {
                command = cli.find_subcommand(text);
            }
            return Some(arg);
        };
        verbatim = text == "--";
        match option(command, text) {
            Spelling::Clear => Some(arg),
            Spelling::Another(text) => Some(text.into()),
            Spelling::Off => None,
        }
    });
    spelled.collect()
}

/// The usual spelling of an argument.
enum Spelling {
    /// The argument is passed on as it is.
    Clear,
    /// The argument is replaced by this one.
    Another(String),
    /// The argument is dropped: it switches off a flag that is off by default.
    Off,
}

/// Spelling of one argument. llvm-xray takes one dash or two before any name, and a truth value
/// behind a flag.
fn option(command: &clap::Command, text: &str) -> Spelling {
    let Some(rest) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else {
        return Spelling::Clear;
    };
    let (name, value) = match rest.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (rest, None),
    };
    let is_short = |arg: &clap::Arg| {
        arg.get_short()
            .is_some_and(|short| name == short.to_string())
    };
    let is_long = |arg: &clap::Arg| {
        let names = arg.get_long_and_visible_aliases();
        names.is_some_and(|names| names.contains(&name))
    };
    let mut args = command.get_arguments();
    let Some(arg) = args.find(|arg| is_short(arg) || is_long(arg)) else {
        return Spelling::Clear;
    };
    let dashes = if is_short(arg) { "-" } else { "--" };
    let takes_value = arg.get_action().takes_values();
    match value.filter(|_| !takes_value) {
        None => Spelling::Another(format!("{dashes}{rest}")),
        Some("" | "true" | "TRUE" | "True" | "1") => Spelling::Another(format!("{dashes}{name}")),
        Some("false" | "FALSE" | "False" | "0") => Spelling::Off,
        Some(_) => Spelling::Clear,
    }
}

/// The commands of llvm-xray.
const LLVM_XRAY: [&str; 7] = [
    "extract",
    "convert",
    "fdr-dump",
    "account",
    "stack",
    "graph",
    "graph-diff",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The exit code of parsing alone: 0 for a line that parses.
    fn code(line: &str) -> i32 {
        let words = std::iter::once("xrayctl").chain(line.split_whitespace());
        let words = spelled(words.map(OsString::from));
        Cli::try_parse_from(words).map_or_else(|error| error.exit_code(), |_| 0)
    }

    #[test]
    fn the_declarations_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_of_another_tool_gets_the_one_that_does_the_same() {
        let cli = Cli::command();
        for (word, meant) in MEANT {
            assert!(cli.find_subcommand(word).is_none(), "{word}");
            assert!(cli.find_subcommand(meant).is_some(), "{meant}");
            let error = Cli::try_parse_from(["xrayctl", word]).unwrap_err();
            let shown = with_meant_command(error).to_string();
            let tips: Vec<_> = shown.lines().filter(|line| line.contains("tip:")).collect();
            assert_eq!(tips.len(), 1, "{shown}");
            assert!(tips[0].ends_with(&format!("'{meant}'")), "{shown}");
        }
        for (word, tip) in [("recrod", Some("'record'")), ("frobnicate", None)] {
            let error = Cli::try_parse_from(["xrayctl", word]).unwrap_err();
            let shown = with_meant_command(error).to_string();
            let found = shown.lines().find(|line| line.contains("tip:"));
            assert_eq!(
                found.map(|line| tip.is_some_and(|tip| line.ends_with(tip))),
                tip.map(|_| true),
                "{shown}"
            );
        }
    }

    #[test]
    fn every_command_that_takes_a_process_takes_it_in_three_ways() {
        for (command, rest) in [
            ("attach", ""),
            ("budget", "--clear"),
            ("count", "--kept"),
            ("detach", ""),
            ("disable", "--all"),
            ("doctor", ""),
            ("enable", "--all"),
            ("extract", ""),
            ("filter", "--clear"),
            ("functions", ""),
            ("mode flight", ""),
            ("profile", "--kept"),
            ("record", "--all"),
            ("snapshot", "-o f"),
            ("status", ""),
            ("top", "--once"),
            ("trigger", "--when death -o f"),
            ("watch", ""),
        ] {
            for process in ["12", "server", "@server.pid", "unit:server.service"] {
                for option in ["", "--pid", "-p"] {
                    let line = format!("{command} {option} {process} {rest}");
                    assert_eq!(code(&line), 0, "{line}");
                }
            }
            if command != "functions" {
                let line = format!("{command} 12 --pid 12 {rest}");
                assert_eq!(code(&line), 2, "{line}");
            }
        }
        for (command, several) in [
            ("attach", 0),
            ("budget", 0),
            ("count --kept", 2),
            ("detach", 0),
            ("disable --all", 0),
            ("doctor", 2),
            ("enable --all", 0),
            ("filter", 0),
            ("mode flight", 0),
            ("record", 2),
            ("snapshot -o f", 2),
            ("status", 0),
        ] {
            for processes in [
                "12 server @server.pid unit:server.service",
                "-p 12 --pid server -p @server.pid",
            ] {
                let line = format!("{command} {processes}");
                assert_eq!(code(&line), several, "{line}");
            }
            let line = format!("{command} 12 server --pid 13");
            assert_eq!(code(&line), 2, "{line}");
        }
        assert_eq!(code("functions --pid 12 parse"), 0);
        assert_eq!(code("functions 12 parse"), 0);
        assert_eq!(code("functions 12 parse --pid 12"), 2);
    }

    #[test]
    fn lines_that_make_sense_are_understood() {
        for line in [
            "ps",
            "ps --json --color never",
            "--socket /tmp/s ps",
            "ps --socket /tmp/s",
            "doctor 12",
            "attach 12 --ring-size 64KiB --max-threads 65536",
            "attach 12 --function f --glob ns::* --except-id 7 --args 2 --retval --pending",
            "attach 12 server --all --json",
            "functions",
            "functions --pid 12 ns::*",
            "enable --all",
            "enable --pid 12 --function f --function g --glob ns::* --except-id 7 --dry-run",
            "disable --source src/* --module libfoo.so --regex ^a",
            "status --pid 12",
            "record 12",
            "record 12 --glob a* --duration 5s -o f --force --strict --ring-size 4MiB",
            "record 12 -o -",
            "record -o - -- ./server --port 80",
            "record -- ./server --port 80",
            "record --all -o f -- ./server",
            "attach 12 --mode stream",
            "mode stream",
            "mode flight --pid 12 --json",
            "watch 12 --function f",
            "watch 12 --glob ns::* --min-duration 1ms --limit 10 --duration 5s --args 2 --retval --json",
            "snapshot -o f",
            "snapshot -o - --pid 12",
            "snapshot -o f --pid 12 --last 100ms --force",
            "snapshot -o f --all-processes --last 1s",
            "trigger --when death -o f",
            "trigger --when death --when demand --pid 12 --all-processes --before 1s --after 0s -o f --force --json",
            "trigger --when death --do snapshot --limit 3/1h --expire 1h -o f --pending",
            "report f --tree --table --thread 12 --function f --since 1s --until 2s --limit 0",
            "report f --sort self --interleave --json",
            "report f --tree --unfold --full-names",
            "report f --slowest 3 --min-duration 1ms",
            "report f --min-on-cpu 1ms --min-off-cpu 1us",
            "report f --table --slowest 0",
            "--full-names functions",
            "extract f",
            "extract -s --no-demangle f --output=g --force",
            "extract --symbolize --demangle --no-demangle f -o -",
            "extract --pid 12 --json",
            "info f --json",
            "account f -k -d -m prog -f csv -s count -r dsc -p 5 -o -",
            "account f -keep-going -instr_map=prog -format=text -sortorder=asc -top=5",
            "account f --instr-map prog --recursive-calls-only --by thread --columns all",
            "diff f g",
            "diff f g -s total --top 5 --min-calls 1 --function h --json",
            "stack f g -k -m prog -all-stacks -stack-format=flame -aggregation-type=time",
            "stack f -all --stack-format flame --aggregate-threads --aggregation-type count",
            "stack f --per-thread-stacks --top 3 --diff g",
            "graph f -k -d -m prog -e sum -v count -c 99p -b max -o -",
            "graph f -keep-going=false --k=1 -d=TRUE --e=sum --v count -b=max -c=99p",
            "graph f -edge-label=count --vertex-label=none -color-edges=min -color-vertices=med",
            "graph-diff f g -k1 -d2 -m1 prog -m2=prog -e sum -c count -v 90p -b max -t 20",
            "graph-diff f g -keep-going -deduce-sibling-calls -instr-map=x -vertex-label-trun=9",
            "tree f --min-duration 1us --depth 3 --function g --diff h",
            "tree f --min-off-cpu 1ms",
            "tree f --interleave --unfold --json",
            "flame f -o f.svg --icicle --diff g",
            "report f --html -o f.html --since 1s --thread 12",
            "view f",
            "view f --port 8080 --no-browser --function f",
            "convert f",
            "convert f -o g.json",
            "convert f -o g --to fdr",
            "fdr-dump f",
            "fdr-dump f --verify",
            "fdr-dump f --salvage",
            "detach 12",
            "detach --all",
            "explain",
            "explain busy",
            "completions bash",
            "completions --candidates -- record -p ",
            "completions zsh",
            "completions fish",
            "man /tmp/m",
            "help record",
        ] {
            assert_eq!(code(line), 0, "{line}");
        }
    }

    #[test]
    fn lines_that_make_no_sense_are_usage_errors() {
        for line in [
            "",
            "frobnicate",
            "doctor",
            "doctor 0",
            "doctor -1",
            "doctor 99999999999",
            "doctor @",
            "doctor unit:",
            "doctor --pid 0",
            "record -p 12 -- ./server",
            "detach --pid 12 --all",
            "profile --diff a b",
            "snapshot 12 --all-processes -o f",
            "attach 12 --ring-size 65537",
            "attach 12 --ring-size 2GiB",
            "attach 12 --max-threads 0",
            "attach 12 --max-threads 65537",
            "enable --id x",
            "enable --regex=",
            "record 12 --except-function=",
            "record",
            "record 12 -- ./server",
            "record 12 --duration 0s",
            "record 12 --duration soon",
            "attach 12 --mode luck",
            "mode",
            "mode luck",
            "snapshot",
            "snapshot -o f --last soon",
            "snapshot -o f --pid 12 --all-processes",
            "trigger",
            "trigger --when luck -o f",
            "trigger --when death --do luck -o f",
            "trigger --when death --limit 0 -o f",
            "trigger --when death --expire 0s -o f",
            "trigger --when death --after soon -o f",
            "trigger --when duration(f)>10 -o f",
            "watch",
            "watch 12 --limit 0",
            "report",
            "report f --limit -1",
            "report f --sort luck",
            "report f --html",
            "report f -o f.html",
            "report f --html -o f.html --json",
            "report f --html -o f.html --tree",
            "report f --html -o f.html --unfold",
            "report f --html -o f.html --slowest 3",
            "report f --open --min-duration 1ms",
            "report f --open --min-off-cpu 1ms",
            "report f --html -o f.html --min-off-cpu 1ms",
            "tree f --min-on-cpu 1ms --diff h",
            "report f --slowest -1",
            "report f --open --interleave",
            "tree f --diff g --interleave",
            "tree f --diff g --unfold",
            "view",
            "view f --port 65536",
            "extract",
            "extract f --pid 12",
            "extract f g",
            "account f --sort luck",
            "diff f",
            "diff f g --sort luck",
            "stack",
            "stack f --per-thread-stacks --aggregate-threads",
            "graph f -e luck",
            "graph f -k=luck",
            "graph-diff f",
            "flame f",
            "convert f -o g --to luck",
            "fdr-dump",
            "fdr-dump f --verify --salvage",
            "detach",
            "detach 12 --all",
            "completions",
            "completions tcl",
            "completions bash -- record",
            "ps --color sometimes",
        ] {
            assert_eq!(code(line), 2, "{line}");
        }
    }
}
