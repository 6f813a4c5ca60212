//! `xrayctl trigger`: conditions and actions. The helpers of the tests are here, and the tests are
//! in files by subject.

mod actions;
mod conditions;
mod ends;
mod limits;
mod processes;
mod refusals;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use serde_json::Value;
use xray_trace::model::{CallKind, EventBody, FunctionId, Trace};

use crate::scene::{Cli, Daemon, Running, Scene, row_of, sleds_on};
use crate::trace::read;

/// A daemon, and a program that it has attached.
struct Stage {
    scene: Scene,
    _daemon: Daemon,
    cli: Cli,
    target: Target,
    pid: String,
}

/// The reports of a trigger, in JSON.
#[derive(Debug)]
struct Told(Vec<Value>);

/// A call in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) tid: u32,
    pub(crate) begun: u64,
    pub(crate) ended: Option<u64>,
}

// === impl Stage ===

impl Stage {
    fn new(threads: &str) -> Result<Self> {
        let scene = Scene::new()?;
        let daemon = scene.daemon()?;
        let cli = scene.with(&daemon)?;
        let target = Target::spawn(Fixture::Triggers, ["--threads", threads])?;
        let pid = target.pid().to_string();
        cli.ok(["attach", &pid])?;
        Ok(Self {
            scene,
            _daemon: daemon,
            cli,
            target,
            pid,
        })
    }

    /// Starts a trigger, and waits until it is armed.
    fn trigger(&self, arguments: &[&str]) -> Result<Running> {
        let arguments = [&["trigger", "--json"][..], arguments].concat();
        let mut running = self.cli.start(arguments)?;
        running.until("it is armed", || Ok((self.armed()? > 0).then_some(())))?;
        Ok(running)
    }

    /// The number of triggers that are armed in the process.
    fn armed(&self) -> Result<u64> {
        let status = self.cli.json(["status"])?;
        let row = row_of(&status, self.target.pid())?.context("no row")?;
        row["triggers"].as_u64().context("no number of triggers")
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.scene.path(name)
    }

    /// Checks that nothing is left of a trigger: no function is on because of it, and the rings
    /// keep the newest events by themselves.
    fn ensure_nothing_left(&self) -> Result<()> {
        wait_until(DEADLINE, "the trigger has let go", || {
            let status = self.cli.json(["status"])?;
            let row = row_of(&status, self.target.pid())?.context("no row")?;
            let clean = row["triggers"] == 0 && row["functions_on"] == 0;
            Ok(clean.then_some(()))
        })?;
        ensure!(sleds_on(&self.target)? == 0);
        Ok(())
    }
}

// === impl Told ===

impl Told {
    fn of(running: Running) -> Result<(Option<i32>, Self)> {
        let ran = running.wait()?;
        let lines = ran.out.lines();
        let reported = lines.map(|line| serde_json::from_str(line).context("a line is no JSON"));
        let reported = reported.collect::<Result<_>>();
        Ok((
            ran.code,
            Self(reported.with_context(|| format!("{ran:?}"))?),
        ))
    }

    /// Checks that the trigger succeeded.
    fn ok(running: Running) -> Result<Self> {
        let (code, reported) = Self::of(running)?;
        ensure!(code == Some(0), "{code:?}: {reported:?}");
        Ok(reported)
    }

    fn all(&self, event: &str) -> Vec<&Value> {
        self.0
            .iter()
            .filter(|reported| reported["event"] == event)
            .collect()
    }

    /// The only report of this kind.
    fn one(&self, event: &str) -> Result<&Value> {
        match &self.all(event)[..] {
            [one] => Ok(one),
            other => anyhow::bail!("{event}: {other:?} in {self:?}"),
        }
    }

    /// The report of the end, which must have this reason.
    fn over(&self, why: &str) -> Result<&Value> {
        let over = self.one("over")?;
        ensure!(over["why"] == why, "{self:?}");
        Ok(over)
    }
}

/// All calls of a function, by its name without parameters.
pub(crate) fn calls_of(trace: &Trace, name: &str) -> Result<Vec<Call>> {
    let of = |id: FunctionId| trace.function_name(id) == name;
    let mut calls = Vec::new();
    for (thread, blocks) in trace.blocks_by_thread() {
        let tid = trace.thread(thread).context("a thread without a row")?.tid;
        let mut open: Vec<usize> = Vec::new();
        for event in blocks.iter().flat_map(|block| block.events()) {
            let event = event?;
            let at = trace.clock().monotonic_ns(event.ticks);
            match event.body {
                EventBody::Call {
                    function,
                    kind: CallKind::Enter,
                    ..
                } if of(function) => {
                    open.push(calls.len());
                    calls.push(Call {
                        tid,
                        begun: at,
                        ended: None,
                    });
                }
                EventBody::Call { function, .. } if of(function) => {
                    if let Some(index) = open.pop() {
                        calls[index].ended = Some(at);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(calls)
}

/// The times of the first and of the last event of each process, by its pid.
fn spans(path: &Path) -> Result<Vec<(u32, u64, u64)>> {
    let trace = read(path)?;
    let mut spans = Vec::new();
    for process in trace.processes() {
        let its = |id| {
            trace
                .thread(id)
                .is_some_and(|thread| thread.process == process.id)
        };
        let blocks = trace.blocks().iter().filter(|block| its(block.thread));
        let mut span: Option<(u64, u64)> = None;
        for block in blocks {
            let clock = trace.clock();
            let (first, last) = (
                clock.monotonic_ns(block.first),
                clock.monotonic_ns(block.last),
            );
            let (begin, end) = span.unwrap_or((first, last));
            span = Some((begin.min(first), end.max(last)));
        }
        if let Some((begin, end)) = span {
            spans.push((process.pid, begin, end));
        }
    }
    Ok(spans)
}

/// The times of a call that the program printed.
pub(crate) fn times(line: &str) -> Result<(u64, u64)> {
    let mut numbers = line.split(' ').skip(1).map(str::parse);
    let mut next = || {
        numbers
            .next()
            .context("too few numbers")?
            .context("no number")
    };
    Ok((next()?, next()?))
}

fn now_monotonic() -> Result<u64> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    Ok(u64::try_from(now.tv_sec())? * 1_000_000_000 + u64::try_from(now.tv_nsec())?)
}
