//! The actions of a trigger.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Parser as _;
use xrayd_proto::v1::{Selection, TriggerSwitch, trigger_switch::Switch};

use crate::output::text::printable;
use crate::output::triggered::Fired;
use crate::selectors::{self, Selectors};
use crate::signals::Signals;

/// The pause between two looks at whether a command has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One action.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Snapshot,
    /// Its text, and its meaning.
    Switch(String, TriggerSwitch),
    /// A command for `sh`.
    Exec(String),
}

/// The words behind `enable` and `disable`: the options of those commands, or globs alone.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Words {
    #[command(flatten)]
    selectors: Selectors,
    globs: Vec<String>,
}

/// Parses an action.
pub(super) fn parse(text: &str) -> Result<Action, String> {
    let text = text.trim();
    let (verb, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let switch = |switch: fn(Selection) -> Switch| {
        let switch = Some(switch(selection(rest)?));
        Ok(Action::Switch(text.to_owned(), TriggerSwitch { switch }))
    };
    match verb {
        "snapshot" if rest.is_empty() => Ok(Action::Snapshot),
        "enable" => switch(Switch::Enable),
        "disable" => switch(Switch::Disable),
        "exec" if !rest.is_empty() => Ok(Action::Exec(rest.to_owned())),
        _ => {
            Err("expected snapshot, enable SELECTION, disable SELECTION or exec COMMAND".to_owned())
        }
    }
}

fn selection(text: &str) -> Result<Selection, String> {
    let words = shlex::split(text).ok_or("a quotation mark is not closed")?;
    let words = Words::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    })?;
    let Words {
        mut selectors,
        globs,
    } = words;
    selectors.add_globs(globs);
    let selection = selectors.selection().map_err(|error| error.to_string())?;
    let selection =
        selection.ok_or("no functions are selected: give a glob, like 'ns::*', or --all")?;
    Ok(selectors::wire(selection))
}

// === impl Action ===

impl Action {
    pub(super) fn switch(&self) -> Option<(&str, TriggerSwitch)> {
        match self {
            Self::Switch(text, switch) => Some((text, switch.clone())),
            Self::Snapshot | Self::Exec(_) => None,
        }
    }

    pub(super) fn command(&self) -> Option<&str> {
        match self {
            Self::Exec(command) => Some(command),
            Self::Snapshot | Self::Switch(..) => None,
        }
    }
}

/// Runs a command to its end, and returns its exit status in words. A signal ends the wait, not the
/// command.
pub(super) async fn run(
    command: &str,
    fired: &Fired,
    file: Option<&Path>,
    signals: &mut Signals,
) -> String {
    let ended = run_shell(command, fired, file, signals).await;
    ended.unwrap_or_else(|error| format!("cannot be run: {error}"))
}

async fn run_shell(
    command: &str,
    fired: &Fired,
    file: Option<&Path>,
    signals: &mut Signals,
) -> io::Result<String> {
    let number = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .env("XRAY_NUMBER", fired.number.to_string())
        .env("XRAY_WHEN", fired.condition.as_deref().unwrap_or_default())
        .env("XRAY_PID", number(fired.pid))
        .env("XRAY_TID", number(fired.tid))
        .env(
            "XRAY_FUNCTION",
            printable(fired.function.as_deref().unwrap_or_default()),
        )
        .env("XRAY_VALUE", fired.value())
        .env("XRAY_FILE", file.unwrap_or_else(|| Path::new("")))
        .stdin(Stdio::null())
        // Standard output is for xrayctl's own lines.
        .stdout(io::stderr());
    let mut child = shell.spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.to_string());
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = signals.next() => return Ok("still running, and xrayctl no longer waits for it".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_that_make_sense_are_understood() {
        let rules = |text: &str| match parse(text).unwrap() {
            Action::Switch(_, TriggerSwitch { switch }) => {
                let (sign, of) = match switch.unwrap() {
                    Switch::Enable(of) => ('+', of),
                    Switch::Disable(of) => ('-', of),
                };
                let rules = of.include.iter().chain(&of.exclude);
                let rules: Vec<String> = rules
                    .map(|rule| format!("{:?}", rule.rule.as_ref().unwrap()))
                    .collect();
                format!("{sign}{}", rules.join(" "))
            }
            other => format!("{other:?}"),
        };
        for (text, expected) in [
            ("snapshot", "Snapshot"),
            ("enable ns::*", "+Glob(\"ns::*\")"),
            ("disable a b", "-Glob(\"a\") Glob(\"b\")"),
            (
                "enable --function 'f(int, int)' --except-id 3",
                "+Function(\"f(int, int)\") Id(3)",
            ),
            ("enable --all", "+All(true)"),
            ("exec  echo 'a  b' ", "Exec(\"echo 'a  b'\")"),
        ] {
            assert_eq!(rules(text), expected, "{text}");
        }
        for text in [
            "",
            "snapshots",
            "snapshot now",
            "enable",
            "enable --except-id 3",
            "enable --nothing",
            "enable 'a",
            "enable [",
            "disable --id x",
            "exec",
            "exec ",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
