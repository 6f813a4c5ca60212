//! Runs tests, and repeats at the end why tests failed. In the log of a run with thousands of
//! tests, the reasons are hard to find.

use std::io::{BufRead as _, BufReader, IsTerminal as _, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::shell::{say, shown};

/// The most lines of each failure that are repeated.
const MOST_LINES: usize = 12;
/// The most characters of such a line.
const MOST_CHARACTERS: usize = 400;
/// The time for the rest of the output after the tests have ended. A program that a test left
/// behind may keep the output open for ever.
const REST: Duration = Duration::from_secs(10);

/// The failures in the output of test programs.
#[derive(Debug, Default)]
struct Failures {
    /// The first lines of each: its heading, and what the test printed.
    each: Vec<Vec<String>>,
    /// True between the heading of a failure and the next heading or list.
    is_within: bool,
}

/// Prints the command, and runs it to its end. It must succeed. Unless standard output is a
/// terminal, the failures stand once more behind its output.
///
/// # Errors
/// The command cannot be started or does not succeed.
pub(crate) fn execute(tests: &mut Command) -> Result<()> {
    if std::io::stdout().is_terminal() {
        return crate::shell::execute(tests);
    }
    let shown = shown(tests);
    say(&format!("$ {shown}"))?;
    let mut running = tests
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    let output = running.stdout.take().context("the tests have no output")?;
    let (sender, failures) = sync_channel(1);
    std::thread::spawn(move || copy(output, &sender));
    let status = running.wait()?;
    let failures = failures.recv_timeout(REST).unwrap_or_default();
    if !status.success() {
        for line in failures.each.iter().flatten() {
            say(line)?;
        }
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Copies the output of tests to standard output, and sends the failures at its end.
fn copy(output: impl Read, failures: &SyncSender<Failures>) {
    let mut found = Failures::default();
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output
        .read_until(b'\n', &mut line)
        .is_ok_and(|bytes| bytes > 0)
    {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\n');
        // Without a reader of this output, the tests still run to their end.
        let _ = say(text);
        found.take(text);
        line.clear();
    }
    let _ = failures.send(found);
}

// === impl Failures ===

impl Failures {
    fn take(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.each.push(Vec::new());
            self.is_within = true;
        } else if line == "failures:" || line.starts_with("test result:") {
            self.is_within = false;
        }
        if self.is_within
            && !line.is_empty()
            && let Some(failure) = self.each.last_mut()
            && failure.len() <= MOST_LINES
        {
            failure.push(line.chars().take(MOST_CHARACTERS).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_repeated_in_short() {
        let output = "\
running 3 tests
test a::good ... ok
test a::bad ... FAILED
test b::worse ... FAILED

failures:

---- a::bad stdout ----
Error: 7 of 8

Caused by:
    a reason

---- b::worse stdout ----

thread 'b::worse' panicked at src/lib.rs:1:1:

failures:
    a::bad
    b::worse

test result: FAILED. 1 passed; 2 failed; 0 ignored
";
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.take(line));
        let expected = [
            vec![
                "---- a::bad stdout ----",
                "Error: 7 of 8",
                "Caused by:",
                "    a reason",
            ],
            vec![
                "---- b::worse stdout ----",
                "thread 'b::worse' panicked at src/lib.rs:1:1:",
            ],
        ];
        assert_eq!(failures.each, expected);
        let long = "x\n".repeat(100) + &"y".repeat(1000);
        failures.take("---- c::long stdout ----");
        long.lines().for_each(|line| failures.take(line));
        assert_eq!(failures.each[2].len(), 1 + MOST_LINES);
    }
}
