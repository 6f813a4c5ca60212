//! What the shells complete beside the command line itself: processes, and functions of a process.
//!
//! The names come from programs, which may be hostile. So a candidate is a short word of harmless
//! characters, and a shell must not evaluate it. Without an answer in time there are no candidates.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use clap::{Arg, CommandFactory as _};
use xrayd_proto::v1::{ListProcessesRequest, ProcessInfo, ProcessState};

use crate::args::Cli;
use crate::client::Daemon;
use crate::output::text::{cut, printable};
use crate::process::{self, ProcessName};
use crate::suggest;

/// The longest wait for all candidates. A user waits for them at a prompt.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most candidates.
const MOST: usize = 1000;
/// The longest candidate, in bytes.
const LONGEST: usize = 200;
/// The longest description, in characters.
const LONGEST_DESCRIPTION: usize = 60;
/// The value names of arguments that take a process.
const PROCESS: &str = "PROCESS";
/// Options that take the name of a function of a process.
const FUNCTIONS: [&str; 3] = ["function", "except-function", "inside"];
/// Commands for attached processes alone.
const FOR_ATTACHED: [&str; 9] = [
    "budget", "detach", "disable", "enable", "filter", "mode", "snapshot", "status", "trigger",
];

/// The thing that the last word of a command line names.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// A process that can be attached to.
    Process,
    /// An attached process.
    Attached,
    /// A function of this process, or of every attached one.
    Function(Option<ProcessName>),
}

/// A word that can take the place of the last one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) word: String,
    /// Empty for a function.
    pub(crate) description: String,
}

/// The candidates for the last of these words. The name of the program is not among them.
pub(crate) async fn of(words: &[String], daemon: &Daemon) -> Vec<Candidate> {
    let (Some(wanted), Some(begin)) = (wanted(words), words.last()) else {
        return Vec::new();
    };
    let found = tokio::time::timeout(PATIENCE, find(wanted, daemon)).await;
    // A shell has no place for an error.
    let Ok(Ok(found)) = found else {
        return Vec::new();
    };
    chosen(found, begin)
}

/// True if the command works on processes.
pub(crate) fn is_for_processes(command: &clap::Command) -> bool {
    command.get_arguments().any(is_process)
}

/// True if the argument of a command for processes names a process or a function.
pub(crate) fn is_named(argument: &Arg) -> bool {
    is_process(argument) || is_function(argument)
}

/// The harmless candidates with this begin.
fn chosen(found: Vec<Candidate>, begin: &str) -> Vec<Candidate> {
    let harmless = |word: &str| {
        let plain = |c: char| c.is_ascii_graphic() && !"'\"`\\".contains(c);
        !word.is_empty() && word.len() <= LONGEST && word.chars().all(plain)
    };
    let fits = |found: &Candidate| found.word.starts_with(begin) && harmless(&found.word);
    found.into_iter().filter(fits).take(MOST).collect()
}

/// The thing that the last word names, if it is a process or a function.
fn wanted(words: &[String]) -> Option<Wanted> {
    let mut cli = Cli::command();
    // Adds the options of every command to each.
    cli.build();
    let (_, before) = words.split_last()?;
    let mut before = before.iter().map(String::as_str);
    // Options before the command, and their values, are not among the names of commands.
    let command = before.find_map(|word| cli.find_subcommand(word))?;
    let option = |word: &str| {
        let mut arguments = command.get_arguments();
        arguments.find(|argument| match word.strip_prefix("--") {
            Some(long) => argument.get_long() == Some(long),
            None => {
                let short = argument.get_short();
                short.is_some_and(|short| word == format!("-{short}"))
            }
        })
    };
    let (mut positional, mut process, mut pending) = (0, None, None::<&Arg>);
    for word in before {
        if word == "--" {
            return None;
        }
        if let Some(argument) = pending.take() {
            if is_process(argument) {
                process = process::parse(word).ok();
            }
        } else if word.starts_with('-') {
            pending = option(word).filter(|argument| argument.get_action().takes_values());
        } else {
            if process.is_none() && place(command, positional).is_some_and(is_process) {
                process = process::parse(word).ok();
            }
            positional += 1;
        }
    }
    let argument = pending.or_else(|| place(command, positional))?;
    if is_process(argument) {
        return Some(match FOR_ATTACHED.contains(&command.get_name()) {
            true => Wanted::Attached,
            false => Wanted::Process,
        });
    }
    (is_for_processes(command) && is_function(argument)).then_some(Wanted::Function(process))
}

/// The positional argument at a place. The last one may take several words.
fn place(command: &clap::Command, place: usize) -> Option<&Arg> {
    let mut positionals = command.get_positionals();
    let at = positionals.nth(place);
    at.or_else(|| {
        let last = command.get_positionals().last()?;
        matches!(last.get_action(), clap::ArgAction::Append).then_some(last)
    })
}

fn is_process(argument: &Arg) -> bool {
    let names = argument.get_value_names().unwrap_or_default();
    names.iter().any(|name| name == PROCESS)
}

fn is_function(argument: &Arg) -> bool {
    let long = argument.get_long();
    long.is_some_and(|long| FUNCTIONS.contains(&long))
}

async fn find(wanted: Wanted, daemon: &Daemon) -> anyhow::Result<Vec<Candidate>> {
    // Only a daemon has attached processes.
    let mut rpc = match wanted {
        Wanted::Process | Wanted::Function(Some(_)) => daemon.connect_or_embed().await?,
        Wanted::Attached | Wanted::Function(None) => daemon.connect().await?,
    };
    let states = match wanted {
        Wanted::Attached => &[ProcessState::Traced][..],
        Wanted::Process => &[ProcessState::Traced, ProcessState::Ready],
        Wanted::Function(process) => {
            let pid = process.map_or(Ok(0), |process| process.find())?;
            let mut names = Vec::new();
            suggest::list(&mut rpc, pid, &mut names).await;
            names.sort_unstable();
            names.dedup();
            let candidates = names.into_iter().map(|word| Candidate {
                word,
                description: String::new(),
            });
            return Ok(candidates.collect());
        }
    };
    let response = rpc.list_processes(ListProcessesRequest {}).await?;
    let mut processes = response.into_inner().processes;
    processes.retain(|process| states.contains(&process.state()));
    Ok(names_of(&processes, |pid| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.trim_end_matches('\n').to_owned()
    }))
}

/// The names of processes: pids, names of programs, and units. `name` returns the name of a
/// process. A name of several processes names none.
fn names_of(processes: &[ProcessInfo], name: impl Fn(u32) -> String) -> Vec<Candidate> {
    let mut named: BTreeMap<String, Vec<&ProcessInfo>> = BTreeMap::new();
    let mut units: BTreeMap<&str, &ProcessInfo> = BTreeMap::new();
    for process in processes {
        let comm = name(process.pid);
        // A name of digits is a pid for every command.
        if matches!(process::parse(&comm), Ok(ProcessName::Program(_))) {
            named.entry(comm).or_default().push(process);
        }
        if process.unit.ends_with(".service") {
            units.entry(&process.unit).or_insert(process);
        }
    }
    let described = |word: String, process: &ProcessInfo| Candidate {
        word,
        description: cut(&printable(&process.command), LONGEST_DESCRIPTION),
    };
    let pids = processes
        .iter()
        .map(|process| described(process.pid.to_string(), process));
    let names = named
        .into_iter()
        .filter_map(|(name, processes)| match processes[..] {
            [only] => Some(described(name, only)),
            _ => None,
        });
    let units = units
        .into_iter()
        .map(|(unit, process)| described(format!("unit:{unit}"), process));
    pids.chain(names).chain(units).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_last_word_names_a_process_or_a_function_of_one() {
        let function = |process: Option<&str>| {
            let process = process.map(|name| process::parse(name).unwrap());
            Some(Wanted::Function(process))
        };
        for (line, expected) in [
            ("record ", Some(Wanted::Process)),
            ("record se", Some(Wanted::Process)),
            ("record -p ", Some(Wanted::Process)),
            ("record --duration 5s --pid 1", Some(Wanted::Process)),
            ("attach 7 8 ", Some(Wanted::Process)),
            ("--color never attach ", Some(Wanted::Process)),
            ("attach --color never ", Some(Wanted::Process)),
            ("record --color never 7 ", None),
            ("functions ", Some(Wanted::Process)),
            ("enable ", Some(Wanted::Attached)),
            ("enable --all 7 8 ", Some(Wanted::Attached)),
            ("mode stream ", Some(Wanted::Attached)),
            ("mode stream 7 ", Some(Wanted::Attached)),
            ("enable --function ", function(None)),
            ("enable -p 7 --function ma", function(Some("7"))),
            ("record server --except-function ", function(Some("server"))),
            ("record --all --pid @f --function ", function(Some("@f"))),
            ("filter --inside ", function(None)),
            ("mode ", None),
            ("record 7 ", None),
            ("record --glob ", None),
            ("record 7 --duration ", None),
            ("record -- ", None),
            ("record -- ./server -p ", None),
            ("report f --function ", None),
            ("view ", None),
            ("rec", None),
            ("", None),
        ] {
            assert_eq!(wanted(&words(line)), expected, "{line:?}");
        }
        assert_eq!(wanted(&[]), None);
    }

    #[test]
    fn a_process_has_its_pid_and_its_name_and_its_unit_once() {
        let process = |pid, unit: &str| ProcessInfo {
            pid,
            unit: unit.to_owned(),
            command: format!("./server \u{1b} {pid}"),
            ..ProcessInfo::default()
        };
        let processes = [
            process(7, "web.service"),
            process(8, "web.service"),
            process(9, "user.slice"),
            process(10, ""),
        ];
        let found = names_of(&processes, |pid| match pid {
            7 | 8 => "worker".to_owned(),
            9 => "9".to_owned(),
            _ => "main".to_owned(),
        });
        let words: Vec<_> = found.iter().map(|found| found.word.as_str()).collect();
        assert_eq!(words, ["7", "8", "9", "10", "main", "unit:web.service"]);
        assert_eq!(found[0].description, "./server \\u{1b} 7");
    }

    #[test]
    fn candidates_are_short_and_harmless_and_begin_with_the_word() {
        let found = [
            "main", "make", "other", "mai n", "ma\u{1b}", "ma`x`", "ma'", "ma$(x)",
        ];
        let candidate = |word: &str| Candidate {
            word: word.to_owned(),
            description: String::new(),
        };
        let mut found: Vec<_> = found.into_iter().map(candidate).collect();
        found.push(candidate(&"m".repeat(LONGEST + 1)));
        let words = chosen(found, "ma").into_iter().map(|found| found.word);
        assert_eq!(words.collect::<Vec<_>>(), ["main", "make", "ma$(x)"]);
    }
}
