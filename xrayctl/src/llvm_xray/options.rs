//! The options of the commands, and LLVM's rules for them (`llvm/Support/CommandLine.h`): one dash
//! or two before a name, a value behind an equals sign or in the next argument, truth values behind
//! flags.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use super::failure::Failure;

/// A command of the tool.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) inputs: Inputs,
    pub(super) options: &'static [Opt],
}

/// The files that a command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inputs {
    /// As many as there are names.
    Each(&'static [&'static str]),
    /// One or more.
    Many(&'static str),
}

/// An option.
#[derive(Debug)]
pub(super) struct Opt {
    pub(super) name: &'static str,
    /// Another name; empty if there is none.
    pub(super) alias: &'static str,
    pub(super) value: ValueKind,
    pub(super) about: &'static str,
}

/// The value of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// A truth value, true without one.
    Flag,
    /// Any text; the word stands for it in the help.
    Text(&'static str),
    /// A whole number.
    Number(&'static str),
    /// One of these.
    OneOf(&'static [&'static str]),
}

/// The parsed arguments of a command.
#[derive(Debug)]
pub(super) struct Arguments {
    values: BTreeMap<&'static str, OsString>,
    /// The options in the order in which they were given.
    order: Vec<&'static str>,
    inputs: Vec<OsString>,
}

/// A request that a command can get.
#[derive(Debug)]
pub(super) enum Request {
    /// To do its work.
    Run(Arguments),
    /// To print this text.
    Print(String),
}

/// The text without a command.
pub(super) fn overview(program: &str, commands: &[&Command]) -> String {
    let width = commands.iter().map(|command| command.name.len()).max();
    let mut text = String::from(ABOUT);
    let _ = write!(
        text,
        "USAGE: {program} [subcommand] [options]\n\nSUBCOMMANDS:\n\n"
    );
    for Command { name, about, .. } in commands {
        let width = width.unwrap_or_default();
        let _ = writeln!(text, "  {name:width$} - {about}");
    }
    let _ = writeln!(
        text,
        "\n  Type \"{program} <subcommand> --help\" to get more help on a specific subcommand"
    );
    text
}

const ABOUT: &str = "\
OVERVIEW: XRay Tools

  This program consolidates multiple XRay trace processing tools for convenient access.

";

/// The answer to an option that stands before any command.
pub(super) fn general(program: &str, option: &OsStr, commands: &[&Command]) -> Option<String> {
    match name_of(option.to_str()?)? {
        "help" | "h" => Some(overview(program, commands)),
        "version" => Some(version()),
        _ => None,
    }
}

fn version() -> String {
    format!(
        "xrayctl {}, as {}\n",
        env!("CARGO_PKG_VERSION"),
        super::NAME
    )
}

/// The name of an option behind its dashes.
fn name_of(option: &str) -> Option<&str> {
    option.strip_prefix("--").or(option.strip_prefix('-'))
}

/// The failure for a word that is no command, and for the arguments behind it.
pub(super) fn unknown_command(path: &str, word: &OsStr, rest: &[OsString]) -> Failure {
    let is_option = word.as_bytes().starts_with(b"-");
    let first = unknown(if is_option { ARGUMENT } else { "subcommand" }, word, path);
    let rest = rest.iter().map(|arg| unknown(ARGUMENT, arg, path));
    Failure::of_usage(std::iter::once(first).chain(rest).collect())
}

const ARGUMENT: &str = "command line argument";

fn unknown(what: &str, word: &OsStr, path: &str) -> String {
    let word = word.to_string_lossy();
    format!("Unknown {what} '{word}'.  Try: '{path} --help'")
}

// === impl Command ===

impl Command {
    /// Parses the arguments behind the command. `path` is the path by which the tool was called,
    /// and `program` its name.
    pub(super) fn parse(
        &self,
        program: &str,
        path: &str,
        args: &[OsString],
    ) -> Result<Request, Failure> {
        let mut parsed = Arguments {
            values: BTreeMap::new(),
            order: Vec::new(),
            inputs: Vec::new(),
        };
        let mut problems = Vec::new();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let bytes = arg.as_bytes();
            if bytes == b"--" {
                parsed.inputs.extend(args.by_ref().cloned());
                break;
            }
            let Some(rest) = bytes.strip_prefix(b"-").filter(|rest| !rest.is_empty()) else {
                parsed.inputs.push(arg.clone());
                continue;
            };
            let rest = rest.strip_prefix(b"-").unwrap_or(rest);
            let (name, value) = match rest.iter().position(|byte| *byte == b'=') {
                Some(at) => (&rest[..at], Some(&rest[at + 1..])),
                None => (rest, None),
            };
            match name {
                b"help" | b"h" => return Ok(Request::Print(self.help(program))),
                b"version" => return Ok(Request::Print(version())),
                _ => {}
            }
            let Some((flags, option, name)) = self.find(name) else {
                problems.push(unknown(ARGUMENT, arg, path));
                continue;
            };
            for flag in flags {
                parsed.set(flag, "true".into());
            }
            let value = value.map(|value| OsString::from_vec(value.to_vec()));
            let value = match (option.value, value) {
                (ValueKind::Flag, None) => "true".into(),
                (_, Some(value)) => value,
                (_, None) => match args.next() {
                    Some(next) => next.clone(),
                    None => {
                        problems.push(about(name, "requires a value!"));
                        break;
                    }
                },
            };
            match option.check(value) {
                Ok(value) => parsed.set(option, value),
                Err(problem) => problems.push(problem),
            }
        }
        problems.extend(self.problem_of_inputs(path, parsed.inputs.len()));
        if problems.is_empty() {
            Ok(Request::Run(parsed))
        } else {
            Err(Failure::of_usage(problems))
        }
    }

    /// The option with this name; or, of several letters in one word, the flags and the last
    /// option, which may take a value.
    fn find<'a>(&self, name: &'a [u8]) -> Option<(Vec<&'static Opt>, &'static Opt, &'a [u8])> {
        let option = |name: &[u8]| self.options.iter().find(|option| option.has_name(name));
        if let Some(option) = option(name) {
            return Some((Vec::new(), option, name));
        }
        let letters = name.chunks(1).collect::<Vec<_>>();
        let (last, flags) = letters.split_last()?;
        let flags = flags.iter().map(|flag| option(flag));
        let flags = flags.collect::<Option<Vec<_>>>()?;
        let are_flags = flags.iter().all(|flag| flag.value == ValueKind::Flag);
        are_flags.then_some((flags, option(last)?, *last))
    }

    /// The problem of this number of inputs.
    fn problem_of_inputs(&self, path: &str, count: usize) -> Option<String> {
        let (least, most) = match self.inputs {
            Inputs::Each(names) => (names.len(), names.len()),
            Inputs::Many(_) => (1, usize::MAX),
        };
        if count < least {
            let plural = if least > 1 { "s" } else { "" };
            Some(format!(
                "Not enough positional command line arguments specified!\n\
                 Must specify at least {least} positional argument{plural}: See: {path} --help"
            ))
        } else if count > most {
            Some(format!(
                "Too many positional arguments specified!\n\
                 Can specify at most {most} positional arguments: See: {path} --help"
            ))
        } else {
            None
        }
    }

    /// The text for `--help`.
    pub(super) fn help(&self, program: &str) -> String {
        let Self {
            name,
            about,
            inputs,
            options,
        } = self;
        let inputs = match inputs {
            Inputs::Each(names) => names.join(" "),
            Inputs::Many(name) => format!("{name}..."),
        };
        let mut text = format!(
            "{ABOUT}SUBCOMMAND '{name}': {about}\n\nUSAGE: {program} {name} [options] {inputs}\n\nOPTIONS:\n\n"
        );
        for option in *options {
            let value = match option.value {
                ValueKind::Flag => String::new(),
                ValueKind::Text(word) | ValueKind::Number(word) => format!("=<{word}>"),
                ValueKind::OneOf(words) => format!("={}", words.join("|")),
            };
            let mut names = format!("--{}{value}", option.name);
            if !option.alias.is_empty() {
                let _ = write!(names, ", -{}", option.alias);
            }
            let _ = writeln!(text, "  {names}\n      {}", option.about);
        }
        text
    }
}

// === impl Opt ===

impl Opt {
    fn has_name(&self, name: &[u8]) -> bool {
        name == self.name.as_bytes() || !name.is_empty() && name == self.alias.as_bytes()
    }

    /// Checks a value, and brings truth values and numbers into one form.
    fn check(&self, value: OsString) -> Result<OsString, String> {
        let text = value.to_string_lossy();
        let problem = match self.value {
            ValueKind::Text(_) => return Ok(value),
            ValueKind::Flag => match &*text {
                "" | "true" | "TRUE" | "True" | "1" => return Ok("true".into()),
                "false" | "FALSE" | "False" | "0" => return Ok("false".into()),
                _ => format!("'{text}' is invalid value for boolean argument! Try 0 or 1"),
            },
            ValueKind::Number(_) => match number(&text) {
                Some(number) => return Ok(number.to_string().into()),
                None => format!("'{text}' value invalid for integer argument!"),
            },
            ValueKind::OneOf(words) if words.contains(&&*text) => return Ok(value),
            ValueKind::OneOf(_) => format!("Cannot find option named '{text}'!"),
        };
        Err(about(self.name.as_bytes(), &problem))
    }
}

/// A message about an option.
fn about(name: &[u8], problem: &str) -> String {
    let name = String::from_utf8_lossy(name);
    let dashes = if name.chars().count() == 1 { "-" } else { "--" };
    format!("for the {dashes}{name} option: {problem}")
}

/// A whole number, in the base that its prefix names.
fn number(text: &str) -> Option<i32> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text),
    };
    let (digits, base) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
        [b'0', b'o', ..] => (&digits[2..], 8),
        [b'0', b'0'..=b'9', ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i32::from_str_radix(&format!("{sign}{digits}"), base).ok()
}

// === impl Arguments ===

impl Arguments {
    fn set(&mut self, option: &Opt, value: OsString) {
        self.values.insert(option.name, value);
        self.order.push(option.name);
    }

    /// The file that the command reads, or the first of them.
    pub(super) fn input(&self) -> &OsStr {
        let first = self.inputs.first();
        first.map_or(OsStr::new(""), OsString::as_os_str)
    }

    /// All files that the command reads.
    pub(super) fn inputs(&self) -> &[OsString] {
        &self.inputs
    }

    /// Whether the option was given.
    pub(super) fn has(&self, option: &str) -> bool {
        self.values.contains_key(option)
    }

    /// Whether names of functions are to be demangled: not if the option against it comes last.
    /// LLVM looks at the places of both options, and not at their values.
    pub(super) fn demangles(&self) -> bool {
        let mut given = self.order.iter().rev();
        let last = given.find(|option| option.ends_with("demangle"));
        last.is_none_or(|last| *last == "demangle")
    }

    /// The value of a flag.
    pub(super) fn flag(&self, option: &str) -> bool {
        self.flag_or(option, false)
    }

    /// The value of a flag that is not off by default.
    pub(super) fn flag_or(&self, option: &str, default: bool) -> bool {
        let value = self.values.get(option);
        value.map_or(default, |value| value == "true")
    }

    /// The value of an option, or this one.
    pub(super) fn text<'a>(&'a self, option: &str, default: &'a str) -> &'a OsStr {
        let value = self.values.get(option);
        value.map_or(OsStr::new(default), OsString::as_os_str)
    }

    /// The value of an option that takes one of several words, or this one.
    pub(super) fn word<'a>(&'a self, option: &str, default: &'a str) -> &'a str {
        self.text(option, default).to_str().unwrap_or(default)
    }

    /// The value of an option that takes a number, or this one.
    pub(super) fn number(&self, option: &str, default: i32) -> i32 {
        let value = self.values.get(option).and_then(|value| value.to_str());
        value
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    }
}
