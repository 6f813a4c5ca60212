//! Runs tests, and repeats at the end why tests failed. In the log of a run with thousands of
//! tests, the reasons are hard to find.

use std::io::{BufRead as _, BufReader, IsTerminal as _, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::shell::{say, shown};

/// The most lines of each failure that are repeated: so many at its begin, and so many at its end,
/// where the error of a test stands behind what the test printed.
const FIRST_LINES: usize = 6;
const LAST_LINES: usize = 8;
/// The most characters of such a line.
const MOST_CHARACTERS: usize = 400;
/// The most bytes of a line that are read at once.
const LONGEST_READ: u64 = 64 << 10;
/// The time for the rest of the output after the tests have ended. A program that a test left
/// behind may keep the output open for ever.
const REST: Duration = Duration::from_secs(10);

/// The failures in the output of test programs.
#[derive(Debug, Default)]
struct Failures {
    /// The first and last lines of each: its heading, and what the test printed.
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
    let (status, failures) =
        run(tests.stdout(Stdio::piped()), REST).with_context(|| format!("cannot run {shown}"))?;
    if !status.success() {
        for line in failures.each.iter().flatten() {
            say(line)?;
        }
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Runs tests with a copy of their output, and waits at most `rest` for its end.
fn run(tests: &mut Command, rest: Duration) -> Result<(ExitStatus, Failures)> {
    let mut running = tests.spawn()?;
    let output = running.stdout.take().context("the tests have no output")?;
    let found = Arc::new(Mutex::new(Failures::default()));
    let (sender, is_over) = sync_channel(1);
    let copied = Arc::clone(&found);
    std::thread::spawn(move || copy(output, &copied, &sender));
    let status = running.wait()?;
    if is_over.recv_timeout(rest).is_err() {
        say("a program that a test left behind keeps the output open: its rest is missing")?;
    }
    let failures = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((status, failures))
}

/// Copies the output of tests to standard output up to its end, and notes the failures.
fn copy(output: impl Read, failures: &Mutex<Failures>, over: &SyncSender<()>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    let mut read = |line: &mut Vec<u8>| {
        let mut part = output.by_ref().take(LONGEST_READ);
        part.read_until(b'\n', line).is_ok_and(|bytes| bytes > 0)
    };
    while read(&mut line) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\n');
        // Without a reader of this output, the tests still run to their end.
        let _ = say(text);
        let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.take(text);
        line.clear();
    }
    let _ = over.send(());
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
        {
            if failure.len() == 1 + FIRST_LINES + LAST_LINES {
                failure.remove(1 + FIRST_LINES);
            }
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
        let long = "first\n".to_owned() + &"x\n".repeat(100) + &"y".repeat(1000);
        failures.take("---- c::long stdout ----");
        long.lines().for_each(|line| failures.take(line));
        let lines = &failures.each[2];
        assert_eq!(lines.len(), 1 + FIRST_LINES + LAST_LINES);
        assert_eq!((lines[1].as_str(), lines[2].as_str()), ("first", "x"));
        assert_eq!(lines[FIRST_LINES + LAST_LINES], "y".repeat(MOST_CHARACTERS));
    }

    /// A test may leave a program behind that keeps the output open.
    #[test]
    fn failures_are_reported_while_the_output_is_open() {
        let mut left = Command::new("sh");
        let script = "sleep 30 & printf -- '---- a::bad stdout ----\\nError: 7 of 8\\n'; exit 3";
        left.args(["-c", script]).stdout(Stdio::piped());
        let (status, failures) = run(&mut left, Duration::from_secs(1)).unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(
            failures.each,
            [["---- a::bad stdout ----", "Error: 7 of 8"]]
        );
    }
}
