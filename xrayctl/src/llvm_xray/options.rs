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
    pub(super) takes: Takes,
    pub(super) about: &'static str,
}

/// The value of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// A truth value, true without one.
    Flag,
    /// Any text; the word stands for it in the help.
    Text(&'static str),
    /// A whole number.
    Number(&'static str),
    /// One of these.
    OneOf(&'static [&'static str]),
}

/// The arguments of a command.
#[derive(Debug)]
pub(super) struct Given {
    values: BTreeMap<&'static str, OsString>,
    inputs: Vec<OsString>,
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
    let option = option.to_str()?;
    let name = option.strip_prefix("--").or(option.strip_prefix('-'))?;
    match name {
        "help" | "h" => Some(overview(program, commands)),
        "version" => Some(format!(
            "xrayctl {}, as {}\n",
            env!("CARGO_PKG_VERSION"),
            super::NAME
        )),
        _ => None,
    }
}

/// The failure for a word that is no command.
pub(super) fn unknown_command(program: &str, word: &OsStr) -> Failure {
    let (word, what) = (word.to_string_lossy(), "Try: '");
    let kind = if word.starts_with('-') {
        "command line argument"
    } else {
        "subcommand"
    };
    Failure::of_usage(format!("Unknown {kind} '{word}'.  {what}{program} --help'"))
}

// === impl Command ===

impl Command {
    /// Reads the arguments behind the command.
    pub(super) fn parse(&self, program: &str, args: &[OsString]) -> Result<Given, Failure> {
        let mut given = Given {
            values: BTreeMap::new(),
            inputs: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let bytes = arg.as_bytes();
            if bytes == b"--" {
                given.inputs.extend(args.by_ref().cloned());
                break;
            }
            let Some(rest) = bytes.strip_prefix(b"-").filter(|rest| !rest.is_empty()) else {
                given.inputs.push(arg.clone());
                continue;
            };
            let rest = rest.strip_prefix(b"-").unwrap_or(rest);
            let (name, value) = match rest.iter().position(|byte| *byte == b'=') {
                Some(at) => (&rest[..at], Some(&rest[at + 1..])),
                None => (rest, None),
            };
            let option = self.options.iter().find(|option| option.has_name(name));
            let Some(option) = option else {
                let arg = arg.to_string_lossy();
                return Err(Failure::of_usage(format!(
                    "Unknown command line argument '{arg}'.  Try: '{program} --help'"
                )));
            };
            let value = value.map(|value| OsString::from_vec(value.to_vec()));
            let value = match (option.takes, value) {
                (Takes::Flag, None) => "true".into(),
                (_, Some(value)) => value,
                (_, None) => match args.next() {
                    Some(next) => next.clone(),
                    None => return Err(option.refuse(name, "requires a value!")),
                },
            };
            let value = option.check(name, value)?;
            given.values.insert(option.name, value);
        }
        self.check_inputs(program, &given)?;
        Ok(given)
    }

    fn check_inputs(&self, program: &str, given: &Given) -> Result<(), Failure> {
        let (least, most) = match self.inputs {
            Inputs::Each(names) => (names.len(), names.len()),
            Inputs::Many(_) => (1, usize::MAX),
        };
        let count = given.inputs.len();
        let (what, limit) = if count < least {
            ("Not enough", format!("Must specify at least {least}"))
        } else if count > most {
            ("Too many", format!("Can specify at most {most}"))
        } else {
            return Ok(());
        };
        let plural = if count > most || least > 1 { "s" } else { "" };
        let what = match what {
            "Not enough" => "Not enough positional command line arguments specified!",
            _ => "Too many positional arguments specified!",
        };
        Err(Failure::of_usage(format!(
            "{what}\n{limit} positional argument{plural}: See: {program} --help"
        )))
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
            let value = match option.takes {
                Takes::Flag => String::new(),
                Takes::Text(word) | Takes::Number(word) => format!("=<{word}>"),
                Takes::OneOf(words) => format!("={}", words.join("|")),
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

    /// Checks a value, and brings truth values into one form.
    fn check(&self, name: &[u8], value: OsString) -> Result<OsString, Failure> {
        let text = value.to_string_lossy();
        let problem = match self.takes {
            Takes::Text(_) => return Ok(value),
            Takes::Flag => match &*text {
                "" | "true" | "TRUE" | "True" | "1" => return Ok("true".into()),
                "false" | "FALSE" | "False" | "0" => return Ok("false".into()),
                _ => format!("'{text}' is invalid value for boolean argument! Try 0 or 1"),
            },
            Takes::Number(_) if text.parse::<i32>().is_ok() => return Ok(value),
            Takes::Number(_) => format!("'{text}' value invalid for integer argument!"),
            Takes::OneOf(words) if words.contains(&&*text) => return Ok(value),
            Takes::OneOf(_) => format!("Cannot find option named '{text}'!"),
        };
        // LLVM names the option itself here, and the alias where the value is missing.
        let name = if matches!(self.takes, Takes::Flag | Takes::Number(_) | Takes::OneOf(_)) {
            self.name.as_bytes()
        } else {
            name
        };
        Err(self.refuse(name, &problem))
    }

    fn refuse(&self, name: &[u8], problem: &str) -> Failure {
        let name = String::from_utf8_lossy(name);
        let dashes = if name.chars().count() == 1 { "-" } else { "--" };
        Failure::of_usage(format!("for the {dashes}{name} option: {problem}"))
    }
}

// === impl Given ===

impl Given {
    /// The file that the command reads, or the first of them.
    pub(super) fn input(&self) -> &OsStr {
        self.inputs
            .first()
            .map_or(OsStr::new(""), OsString::as_os_str)
    }

    /// All files that the command reads.
    pub(super) fn inputs(&self) -> &[OsString] {
        &self.inputs
    }

    /// Whether the option was given.
    pub(super) fn has(&self, option: &str) -> bool {
        self.values.contains_key(option)
    }

    /// The value of a flag.
    pub(super) fn flag(&self, option: &str) -> bool {
        self.flag_or(option, false)
    }

    /// The value of a flag that is not off by default.
    pub(super) fn flag_or(&self, option: &str, default: bool) -> bool {
        self.values
            .get(option)
            .map_or(default, |value| value == "true")
    }

    /// The value of an option, or this one.
    pub(super) fn text<'a>(&'a self, option: &str, default: &'a str) -> &'a OsStr {
        self.values
            .get(option)
            .map_or(OsStr::new(default), OsString::as_os_str)
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
