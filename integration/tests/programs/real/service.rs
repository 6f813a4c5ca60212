//! A Rust service on tokio, with its dependencies.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Program, Target, build_program};
use nix::sys::signal::Signal;

use super::client::{converse, ensure_same};
use super::storm::{Work, trace};
use crate::scene::send;

/// Requests in each piece of work.
const QUESTIONS: u64 = 60;

struct Service {
    target: Mutex<Target>,
    pid: i32,
    port: u16,
    program: PathBuf,
    questions: String,
    /// The answers of an untraced run.
    expected: Vec<u8>,
}

#[test]
fn a_tokio_service_works_on_under_every_kind_of_tracing() -> Result<()> {
    let mut service = Service::start()?;
    trace(&service)?;
    let target = service
        .target
        .get_mut()
        .unwrap_or_else(PoisonError::into_inner);
    send(target.pid().cast_unsigned(), Signal::SIGTERM)?;
    let kept = target.line_with("kept ", DEADLINE)?;
    ensure!(kept == format!("kept {QUESTIONS}"), "{kept}");
    ensure!(target.wait(DEADLINE)?.success());
    Ok(())
}

// === impl Service ===

impl Service {
    fn start() -> Result<Self> {
        let program = build_program(Program::Service)?.dir.join("service");
        let mut target = Target::spawn_unready(Command::new(&program))?;
        let ready = target.line_with("ready ", DEADLINE)?;
        let port = ready.strip_prefix("ready ").context("no port")?.parse()?;
        let mut questions = String::new();
        for number in 0..QUESTIONS {
            writeln!(questions, "{}", number * 7919)?;
        }
        questions.push_str("that is all\n");
        let expected = converse(port, questions.as_bytes())?;
        let answers = expected.iter().filter(|byte| **byte == b'\n').count() as u64;
        ensure!(answers == QUESTIONS + 1, "{answers} answers");
        Ok(Self {
            pid: target.pid(),
            target: Mutex::new(target),
            port,
            program,
            questions,
            expected,
        })
    }
}

impl Work for Service {
    fn program(&self) -> &Path {
        &self.program
    }

    fn pids(&self) -> Vec<i32> {
        vec![self.pid]
    }

    fn sides(&self) -> usize {
        4
    }

    fn work(&self, _: usize) -> Result<()> {
        ensure_same(
            &converse(self.port, self.questions.as_bytes())?,
            &self.expected,
        )
    }

    fn counted(&self) -> (&'static [&'static str], Option<u64>) {
        (&["--regex", "^<?service::parsed"], Some(QUESTIONS + 1))
    }

    fn healthy(&self) -> Result<()> {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        target.still_running()
    }
}
