//! Does the same to several processes, one after the other. After a failure with one of them, a
//! command goes on with the others.

use crate::failure::{self, Failure};
use crate::output::Console;
use crate::process::ProcessName;

/// The pid that stands for every attached process.
pub(crate) const EVERY_ATTACHED: u32 = 0;

/// The processes that a command line names, and the failures so far.
#[derive(Debug)]
pub(crate) struct EachProcess {
    /// The processes that were found. Each is in it once.
    found: Vec<Found>,
    /// The number of names on the command line; 0 for every attached process.
    named: usize,
    /// The number of names with a failure.
    failed: usize,
    /// The exit code of the first failure.
    code: u8,
}

/// A process, with its name from the command line.
#[derive(Debug)]
struct Found {
    name: String,
    pid: u32,
}

// === impl EachProcess ===

impl EachProcess {
    /// Finds the processes. Without a name, the command works once, on every attached process.
    ///
    /// # Errors
    /// None of the processes can be found.
    pub(crate) fn find(names: &[&ProcessName], console: &Console) -> anyhow::Result<Self> {
        let mut this = Self {
            found: Vec::new(),
            named: names.len(),
            failed: 0,
            code: 0,
        };
        if names.is_empty() {
            this.found.push(Found {
                name: String::new(),
                pid: EVERY_ATTACHED,
            });
        }
        for name in names {
            let found = name.find();
            let Some(pid) = this.result(&name.to_string(), found, console)? else {
                continue;
            };
            if this.found.iter().all(|found| found.pid != pid) {
                let name = name.to_string();
                this.found.push(Found { name, pid });
            }
        }
        this.ensure_any(this.found.len())?;
        Ok(this)
    }

    /// Whether the command line names several processes.
    pub(crate) fn are_several(&self) -> bool {
        self.named > 1
    }

    /// Calls a function for each process, and returns the results. The pid is 0 for every attached
    /// process. With several processes, an error becomes a line with the name of the process. After
    /// a signal, the remaining processes are left alone, and count as failures.
    ///
    /// # Errors
    /// The function failed for the only process, or for each of several.
    pub(crate) async fn run<T>(
        &mut self,
        console: &Console,
        mut work: impl AsyncFnMut(u32) -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<T>> {
        let mut results = Vec::new();
        let mut found = std::mem::take(&mut self.found).into_iter();
        while let Some(Found { name, pid }) = found.next() {
            let done = work(pid).await;
            let is_interrupted = done.as_ref().is_err_and(failure::is_interrupted);
            results.extend(self.result(&name, done, console)?);
            if is_interrupted {
                for Found { name, .. } in found.by_ref() {
                    console.note(&format!("{name}: left alone after the signal"));
                    self.failed += 1;
                }
            }
        }
        self.ensure_any(results.len())?;
        Ok(results)
    }

    /// The failures as a failure of the whole command.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self.failed {
            0 => Ok(()),
            failed => Err(Failure::Several {
                failed,
                of: self.named,
                code: self.code,
            }),
        }
    }

    /// Counts and prints an error, if there are other processes.
    fn result<T>(
        &mut self,
        name: &str,
        result: anyhow::Result<T>,
        console: &Console,
    ) -> anyhow::Result<Option<T>> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error) if !self.are_several() => Err(error),
            Err(error) => {
                // A reader of the output that has gone away ends the command.
                let Some(code) = failure::exit_code(&error) else {
                    return Err(error);
                };
                console.note(&format!("{name}: {error:#}"));
                if self.failed == 0 {
                    self.code = code;
                }
                self.failed += 1;
                Ok(None)
            }
        }
    }

    fn ensure_any(&self, results: usize) -> Result<(), Failure> {
        if results > 0 {
            return Ok(());
        }
        Err(Failure::Several {
            failed: self.failed,
            of: self.named,
            code: self.code,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{ColourChoice, Names};

    /// A process with which the command is interrupted.
    const INTERRUPTED: u32 = 99;

    fn console() -> Console {
        Console::new(ColourChoice::Never, Names::Short)
    }

    fn run(names: &[&ProcessName], failing: &[u32]) -> anyhow::Result<(Vec<u32>, Option<u8>)> {
        let console = console();
        let mut each = EachProcess::find(names, &console)?;
        let work = async |pid| match failing.contains(&pid) {
            true => Err(Failure::NothingMatched(pid.to_string()).into()),
            false if pid == INTERRUPTED => Err(Failure::Interrupted(String::new()).into()),
            false => Ok(pid),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let done = runtime.block_on(each.run(&console, work))?;
        let failed = each.finish().map_err(anyhow::Error::from);
        Ok((
            done,
            failed.err().and_then(|error| failure::exit_code(&error)),
        ))
    }

    #[test]
    fn a_failure_with_one_process_keeps_nothing_from_the_others() {
        let [a, b, c] = [7, 8, 9].map(ProcessName::Pid);
        let nobody = ProcessName::File("/nonexistent/a.pid".into());
        for (names, failing, expected) in [
            (&[][..], &[][..], (vec![0], None)),
            (&[&a], &[], (vec![7], None)),
            (&[&a, &b, &c], &[], (vec![7, 8, 9], None)),
            (&[&a, &b, &a], &[], (vec![7, 8], None)),
            (&[&a, &b, &c], &[8], (vec![7, 9], Some(3))),
            (&[&nobody, &a, &b], &[7], (vec![8], Some(1))),
        ] {
            assert_eq!(run(names, failing).unwrap(), expected, "{names:?}");
        }
    }

    #[test]
    fn a_signal_leaves_the_remaining_processes_alone() {
        let [a, b, c] = [7, INTERRUPTED, 9].map(ProcessName::Pid);
        assert_eq!(run(&[&a, &b, &c], &[]).unwrap(), (vec![7], Some(1)));
        let error = run(&[&b, &a, &c], &[]).unwrap_err();
        assert_eq!(error.to_string(), "3 of 3 processes failed");
        assert_eq!(run(&[&b], &[]).unwrap_err().to_string(), "interrupted");
    }

    #[test]
    fn the_only_process_fails_with_its_own_error_and_several_with_their_number() {
        let [a, b] = [7, 8].map(ProcessName::Pid);
        for (names, failing, expected, code) in [
            (&[&a][..], &[7][..], "nothing matched: 7", 3),
            (&[], &[0], "nothing matched: 0", 3),
            (&[&a, &b], &[7, 8], "2 of 2 processes failed", 3),
        ] {
            let error = run(names, failing).unwrap_err();
            assert_eq!(format!("{error:#}"), expected);
            assert_eq!(failure::exit_code(&error), Some(code));
        }
    }
}
