//! Checks that the documents and the programs agree, in both directions: subcommands, options,
//! reason ids, modes, calls of the contract, and metrics.
//!
//! `integration` runs the command lines of the documents. These checks also cover options that
//! stand alone in a sentence, and find what no document names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};
use xrayd::Reason;
use xrayd::types::Mode;

use crate::args::Cli;

/// Programs of others whose options the documents name.
const FOREIGN: [&str; 4] = ["cargo", "curl", "systemctl", "systemd-analyze"];

/// Words that end a command in a shell's line.
const ENDS: [&str; 6] = ["|", ">", "&&", ";", "#", "--"];

/// A piece of code in a document.
#[derive(Debug, PartialEq, Eq)]
enum Code {
    /// A command line, or a span within a sentence.
    Line(String),
    /// A line of a block that shows no commands, such as output.
    Output(String),
}

/// A program, and options that a document names of it.
#[derive(Debug, PartialEq, Eq)]
struct Mention {
    program: Program,
    /// Names behind two dashes.
    options: Vec<String>,
    /// Names behind one dash: letters, and llvm-xray's spelling of long options.
    one_dash: Vec<String>,
}

/// The program that a piece of code names.
#[derive(Debug, PartialEq, Eq)]
enum Program {
    /// xrayctl, with the subcommand if one is named.
    Xrayctl(Option<String>),
    Xrayd,
    /// Options without a program in front: those of xrayctl or xrayd.
    Either,
    /// The first word of any other code.
    Other(String),
}

/// The two programs, in clap's terms.
struct Programs {
    xrayctl: Command,
    xrayd: Command,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// The documents for users, by their names.
fn documents() -> Vec<(String, String)> {
    let mut files = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/design"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                files.push(format!("{folder}/{name}"));
            }
        }
    }
    let texts = files.into_iter().map(|file| {
        let text = read(&file);
        (file, text)
    });
    texts.collect()
}

/// The pieces of code in a Markdown text.
fn code(text: &str) -> Vec<Code> {
    let mut found = Vec::new();
    let (mut fence, mut continued, mut paragraph) = (None, String::new(), String::new());
    for line in text.lines() {
        match (fence, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                spans(&mut paragraph, &mut found);
                fence = Some(language);
            }
            (Some(_), Some(_)) => fence = None,
            (Some("console"), None) => {
                let line = std::mem::take(&mut continued) + line;
                if let Some(begin) = line.strip_suffix('\\') {
                    continued = begin.to_owned();
                } else if let Some(command) = line.strip_prefix("$ ") {
                    found.push(Code::Line(command.to_owned()));
                } else {
                    found.push(Code::Output(line));
                }
            }
            (Some(_), None) => found.push(Code::Output(line.to_owned())),
            (None, None) => {
                if line.is_empty() || line.starts_with(['|', '*', '#']) {
                    spans(&mut paragraph, &mut found);
                }
                paragraph.push_str(line.trim_start());
                paragraph.push(' ');
            }
        }
    }
    spans(&mut paragraph, &mut found);
    found
}

/// Moves the spans of code of a paragraph to `found`. A span may be broken between lines.
fn spans(paragraph: &mut String, found: &mut Vec<Code>) {
    // Every other piece between backticks is code. A pipe in a table's cell is escaped.
    let pieces = paragraph.split('`').skip(1).step_by(2);
    found.extend(pieces.map(|piece| Code::Line(piece.replace(r"\|", "|"))));
    paragraph.clear();
}

/// The spans of code in a line.
fn spans_of(line: &str) -> BTreeSet<String> {
    let pieces = line.split('`').skip(1).step_by(2);
    pieces
        .map(|span| span.trim_matches('"').to_owned())
        .collect()
}

/// The rows of the table under this header row.
fn rows<'a>(text: &'a str, header: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().skip_while(|line| !line.starts_with(header));
    let table = lines.take_while(|line| line.starts_with('|')).skip(2);
    let cells = table.map(|line| line.trim_matches('|').split(" | ").collect());
    cells.collect()
}

/// The first name in each row of the table under this header row, and in lists all names.
fn first_column(text: &str, header: &str) -> BTreeSet<String> {
    let rows = rows(text, header);
    rows.iter().flat_map(|row| spans_of(row[0])).collect()
}

/// The name of an option at the begin of a word, behind these dashes.
fn option<'a>(word: &'a str, dashes: &str) -> Option<&'a str> {
    let name = word.strip_prefix(dashes)?;
    let end = name.find(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c));
    let name = &name[..end.unwrap_or(name.len())];
    let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
    is_name.then_some(name)
}

/// The program and the options of a piece of code, if there are any.
fn mention(code: &Code) -> Option<Mention> {
    let (Code::Line(line) | Code::Output(line)) = code;
    let words = shlex::split(line);
    let words = words.unwrap_or_else(|| line.split(' ').map(str::to_owned).collect());
    let mut words = words.iter().map(String::as_str).peekable();
    words.next_if_eq(&"sudo");
    let first = *words.peek()?;
    let xrayctl = Cli::command();
    let program = if matches!(code, Code::Output(_)) || first.starts_with('-') {
        Program::Either
    } else if first == "xrayd" {
        Program::Xrayd
    } else if first == "xrayctl" {
        words.next();
        Program::Xrayctl(words.peek().and_then(|word| command_name(word)))
    } else if xrayctl.find_subcommand(first).is_some() {
        Program::Xrayctl(Some(first.to_owned()))
    } else {
        Program::Other(first.to_owned())
    };
    let words: Vec<_> = words.take_while(|word| !ENDS.contains(word)).collect();
    let names = |dashes| {
        let names = words.iter().filter_map(|word| option(word, dashes));
        names.map(str::to_owned).collect()
    };
    Some(Mention {
        program,
        options: names("--"),
        one_dash: names("-"),
    })
}

/// The name of a subcommand; not a placeholder such as COMMAND, and not an option.
fn command_name(word: &str) -> Option<String> {
    let is_name = word.starts_with(|c: char| c.is_ascii_lowercase());
    is_name.then(|| word.to_owned())
}

/// Every word of a text that begins with `begin`, as an identifier.
fn identifiers<'a>(text: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(move |word| word.len() > begin.len() && word.starts_with(begin))
}

/// The calls of the contract.
fn calls(proto: &str) -> BTreeSet<String> {
    let calls = proto
        .lines()
        .filter_map(|line| line.strip_prefix("  rpc ")?.split('(').next());
    calls.map(str::to_owned).collect()
}

/// Names of the contract in a text that the contract does not have: of messages, of calls, and of
/// their fields.
fn wrong_contract_names(text: &str, proto: &str) -> Vec<String> {
    let known: BTreeSet<&str> = identifiers(proto, "").collect();
    let mut wrong = Vec::new();
    for piece in code(text) {
        let Code::Line(span) = piece else { continue };
        let is_name = |part: &str| {
            let rest = part.strip_prefix(|c: char| c.is_ascii_uppercase());
            rest.is_some_and(|rest| {
                rest.starts_with(|c: char| c.is_ascii_lowercase())
                    && rest.chars().all(|c| c.is_ascii_alphanumeric())
            })
        };
        let path = span.split(' ').next_back().unwrap_or_default();
        let name = path.strip_prefix("xrayd.v1.Xrayd/").unwrap_or(path);
        let mut parts = name.split('.');
        if parts.next().is_some_and(is_name) {
            let unknown = name.split('.').filter(|part| !known.contains(part));
            wrong.extend(unknown.map(|part| format!("`{span}`: no {part} in the contract")));
        }
    }
    wrong
}

/// Metrics in a text that have no row in the tables of `docs/metrics.md`.
fn wrong_metrics(text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let endings = ["_bucket", "_sum", "_count"];
    let is_known = |name: &str| {
        let group = endings.iter().find_map(|ending| name.strip_suffix(ending));
        known.contains(name) || group.is_some_and(|group| known.contains(group))
    };
    let names = identifiers(text, "xrayd_").filter(|name| !name.starts_with("xrayd_proto"));
    let wrong = names.filter(|name| !is_known(name));
    wrong.map(|name| format!("no metric {name}")).collect()
}

// === impl Programs ===

impl Programs {
    fn new() -> Self {
        let (mut xrayctl, mut xrayd) = (Cli::command(), xrayd::config::Config::command());
        xrayctl.build();
        xrayd.build();
        Self { xrayctl, xrayd }
    }

    /// Subcommands and options in a text that do not exist.
    fn wrong(&self, text: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        for code in code(text) {
            let Some(mention) = mention(&code) else {
                continue;
            };
            let commands = match &mention.program {
                Program::Xrayctl(None) => vec![&self.xrayctl],
                Program::Xrayctl(Some(name)) => match self.xrayctl.find_subcommand(name) {
                    // `policy apply` has options of its own.
                    Some(command) => command.get_subcommands().chain([command]).collect(),
                    None => {
                        wrong.push(format!("{code:?}: no subcommand {name}"));
                        continue;
                    }
                },
                Program::Xrayd => vec![&self.xrayd],
                Program::Either => {
                    let commands = self.xrayctl.get_subcommands();
                    let nested = self.xrayctl.get_subcommands();
                    let nested = nested.flat_map(clap::Command::get_subcommands);
                    let all = commands.chain(nested);
                    all.chain([&self.xrayctl, &self.xrayd]).collect()
                }
                Program::Other(name) if FOREIGN.contains(&name.as_str()) => continue,
                // Its options would be those of a subcommand that does not exist.
                Program::Other(_) => Vec::new(),
            };
            let one_dash = match mention.program {
                // Alone, such a word may belong to any program.
                Program::Xrayctl(Some(_)) | Program::Xrayd => mention.one_dash,
                _ => Vec::new(),
            };
            for name in mention.options.into_iter().chain(one_dash) {
                if !commands.iter().any(|command| has_option(command, &name)) {
                    wrong.push(format!("{code:?}: no option {name}"));
                }
            }
        }
        wrong
    }

    /// Subcommands and options of xrayctl that a text does not name. A short option names the long
    /// one.
    fn unnamed(&self, text: &str) -> Vec<String> {
        let (mut commands, mut options) = (BTreeSet::new(), BTreeSet::new());
        for mention in code(text).iter().filter_map(mention) {
            if let Program::Xrayctl(Some(name)) = mention.program {
                commands.insert(name);
            }
            options.extend(mention.options);
            options.extend(mention.one_dash);
        }
        let mut unnamed = Vec::new();
        for command in self.xrayctl.get_subcommands() {
            if !commands.contains(command.get_name()) {
                unnamed.push(command.get_name().to_owned());
            }
            for option in command.get_arguments().filter(|arg| !arg.is_positional()) {
                if !names(option).iter().any(|name| options.contains(name)) {
                    let name = option.get_long().unwrap_or_default();
                    unnamed.push(format!("{} --{name}", command.get_name()));
                }
            }
        }
        unnamed
    }
}

/// All spellings of an option, without dashes.
fn names(option: &clap::Arg) -> Vec<String> {
    let long = option.get_long().into_iter();
    let aliases = option.get_all_aliases().unwrap_or_default();
    let short = option.get_short().map(String::from);
    let names = long.chain(aliases).map(str::to_owned);
    names.chain(short).collect()
}

fn has_option(command: &Command, name: &str) -> bool {
    let mut options = command.get_arguments();
    options.any(|option| names(option).iter().any(|known| known == name))
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[test]
fn commands_and_options_in_the_documents_exist() {
    let programs = Programs::new();
    let mut wrong = Vec::new();
    for (file, text) in documents() {
        let found = programs.wrong(&text).into_iter();
        wrong.extend(found.map(|found| format!("{file}: {found}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_guide_names_every_command_and_option() {
    let unnamed = Programs::new().unnamed(&read("docs/xrayctl.md"));
    assert!(unnamed.is_empty(), "{unnamed:#?}");
}

#[test]
fn the_manual_page_of_the_daemon_names_every_option() {
    let page = read("docs/man/xrayd.8").replace(r"\-", "-");
    for option in Programs::new().xrayd.get_arguments() {
        let name = option.get_long().unwrap();
        assert!(page.contains(&format!("--{name}\\fR")), "{name}");
    }
}

#[test]
fn the_table_of_errors_has_every_reason() {
    let text = read("docs/api.md");
    let rows = rows(&text, "| code | reasons");
    let documented: BTreeSet<_> = rows.iter().flat_map(|row| spans_of(row[1])).collect();
    assert_eq!(documented, set(Reason::ALL.map(Reason::id)));
}

#[test]
fn the_documents_have_every_mode() {
    let (guide, api) = (read("docs/xrayctl.md"), read("docs/api.md"));
    let metrics = read("docs/metrics.md");
    let cell = |text: &str, row: &str, cell: usize| {
        let line = text.lines().find(|line| line.starts_with(row)).unwrap();
        spans_of(line.split(" | ").nth(cell).unwrap())
    };
    let first = |text: &str| {
        let rows = rows(text, "| mode | ");
        let names = rows.iter().filter_map(|row| row[0].split('`').nth(1));
        set(names)
    };
    let modes = set(Mode::ALL.map(Mode::name));
    assert_eq!(first(&guide), modes);
    assert_eq!(first(&api), modes);
    assert_eq!(cell(&guide, "| `mode` | ", 1), modes);
    assert_eq!(cell(&metrics, "| `xrayd_session_mode` | ", 2), modes);
    let proto = read("proto/proto/xrayd/v1/xrayd.proto");
    let numbered = proto
        .lines()
        .filter_map(|line| line.strip_prefix("  MODE_")?.split(' ').next());
    let contract = numbered.filter(|name| *name != "UNSPECIFIED");
    let contract: BTreeSet<_> = contract.map(str::to_lowercase).collect();
    assert_eq!(contract, modes);
}

#[test]
fn the_table_of_calls_is_the_contract() {
    let proto = read("proto/proto/xrayd/v1/xrayd.proto");
    let api = read("docs/api.md");
    assert_eq!(first_column(&api, "| call | "), calls(&proto));
    let wrong = wrong_contract_names(&api, &proto);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A test of the daemon compares the tables of `docs/metrics.md` with the page itself.
#[test]
fn metrics_in_the_documents_have_a_row() {
    let metrics = read("docs/metrics.md");
    let known = spans_of_rows(&metrics);
    let mut wrong = Vec::new();
    for (file, text) in documents() {
        let found = wrong_metrics(&text, &known).into_iter();
        wrong.extend(found.map(|found| format!("{file}: {found}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The first names of all rows of all tables.
fn spans_of_rows(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    set(rows.filter_map(|line| line.split('`').nth(1)))
}

#[test]
fn wrong_names_are_found() {
    let programs = Programs::new();
    let check = |text: &str, expected: &[&str]| {
        let wrong = programs.wrong(text);
        assert_eq!(wrong.len(), expected.len(), "{text}: {wrong:#?}");
        for (wrong, expected) in wrong.iter().zip(expected) {
            assert!(wrong.ends_with(expected), "{text}: {wrong}");
        }
    };
    check("See `xrayctl fetch`.", &["no subcommand fetch"]);
    check("`xrayctl ps --jsn`", &["no option jsn"]);
    check("`fetch --json`", &["no option json"]);
    check("`record --strct` or `--strict`", &["no option strct"]);
    check("`--strct`", &["no option strct"]);
    check("`xrayd --metric 1`", &["no option metric"]);
    check("`xrayd\n--metric 1`", &["no option metric"]);
    let block = "```console\n$ sudo xrayctl top \\\n  7 --onse # why\n```\n";
    check(block, &["no option onse"]);
    check(
        "```text\nfilter: --min-durtion 1s\n```",
        &["no option min-durtion"],
    );
    check("`xrayctl record -- ls --no-such`", &[]);
    check("`xrayctl COMMAND`, `cargo test --no-run`", &[]);
    check(
        "`xrayctl stack -all-stacks --instr_map=FILE --e=sum`",
        &["no option e"],
    );
    check(
        "`stack -m FILE -all-stack`, `-fno-such`",
        &["no option all-stack"],
    );

    assert!(programs.unnamed("`xrayctl top --once`").len() > 100);
    let left =
        programs.unnamed("`xrayctl ps --json --socket S --color C --full-names --help --version`");
    assert!(!left.iter().any(|name| name.starts_with("ps")), "{left:?}");

    let table = "| code | reasons |\n|---|---|\n| `A` | `busy`, `bussy` if `x` |\n\n| `B` | `y` |";
    let rows = rows(table, "| code | ");
    assert_eq!(spans_of(rows[0][1]), set(["busy", "bussy", "x"]));
    assert_eq!(rows.len(), 1);

    let proto = "service X {\n  rpc Attach(AttachRequest) returns (A);\n}\n// Detach\n";
    assert_eq!(calls(proto), set(["Attach"]));
    assert!(wrong_contract_names("`Attach`, `XDG_X`, `rpc`", proto).is_empty());
    for wrong in ["`Fetch`", "`AttachRequest.pid`", "`a xrayd.v1.Xrayd/Look`"] {
        assert_eq!(wrong_contract_names(wrong, proto).len(), 1, "{wrong}");
    }

    let known = set(["xrayd_events_total", "xrayd_d_seconds"]);
    assert!(wrong_metrics("xrayd_events_total{} xrayd_d_seconds_bucket", &known).is_empty());
    assert_eq!(
        wrong_metrics("rate(xrayd_event_total[5m])", &known).len(),
        1
    );
}
