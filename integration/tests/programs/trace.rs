//! Compares a trace file with the counts of the program `counted`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use integration::{CallEvent, EventKind, GroundTruth, SequenceHash};
use serde_json::Value;
use xray_trace::model::{CallKind, EventBody, Trace};

use crate::scene::{Cli, rows};

/// The events of each thread, in order, up to the first loss.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) threads: BTreeMap<i32, Vec<CallEvent>>,
    pub(crate) lost: u64,
}

pub(crate) fn read(path: &Path) -> Result<Trace> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Trace::read(BufReader::new(file)).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a trace of `counted`.
pub(crate) fn seen(path: &Path, truth: &GroundTruth) -> Result<Seen> {
    let trace = read(path)?;
    let mut seen = Seen::default();
    for (id, blocks) in trace.blocks_by_thread() {
        let thread = trace.thread(id).context("a thread without a row")?;
        let events = seen.threads.entry(i32::try_from(thread.tid)?).or_default();
        let mut whole = true;
        for block in blocks {
            for event in block.events() {
                match event?.body {
                    EventBody::Lost { events } => {
                        seen.lost += events;
                        whole = false;
                    }
                    EventBody::Call { function, kind, .. } if whole => {
                        let name = trace.function_name(function);
                        let function = truth
                            .function(&name)
                            .with_context(|| format!("{name} is not counted"))?;
                        let kind = match kind {
                            CallKind::Enter => EventKind::Entry,
                            CallKind::Exit => EventKind::Exit,
                            CallKind::TailExit => EventKind::TailExit,
                        };
                        events.push(CallEvent { kind, function });
                    }
                    EventBody::Call { .. } => {}
                    EventBody::Data { .. }
                    | EventBody::Cpu { .. }
                    | EventBody::Unwound { .. }
                    | EventBody::UnmatchedExit => {}
                }
            }
        }
    }
    Ok(seen)
}

/// Checks that the file has every event of every thread, in order, and nothing else.
pub(crate) fn ensure_exact(path: &Path, truth: &GroundTruth) -> Result<()> {
    let seen = seen(path, truth)?;
    ensure!(seen.lost == 0, "{} lost", seen.lost);
    ensure!(
        seen.threads.len() == truth.threads.len(),
        "{} threads instead of {}",
        seen.threads.len(),
        truth.threads.len()
    );
    for thread in &truth.threads {
        let tid = thread.tid;
        let events = seen
            .threads
            .get(&tid)
            .with_context(|| format!("no thread {tid}"))?;
        let mut hash = SequenceHash::new();
        events.iter().for_each(|event| hash.push(*event));
        ensure!(
            events.len() as u64 == thread.events && hash.value() == thread.hash,
            "thread {tid}: {} events instead of {}, or in another order",
            events.len(),
            thread.events
        );
    }
    Ok(())
}

/// Checks that the table of `xrayctl report` has the program's own counts.
pub(crate) fn ensure_reported(cli: &Cli, path: &Path, truth: &GroundTruth) -> Result<()> {
    let report = cli.json([
        "report".as_ref(),
        path.as_os_str(),
        "--limit".as_ref(),
        "0".as_ref(),
    ])?;
    ensure!(report["trace"]["completeness"] == "complete", "{report}");
    ensure!(report["trace"]["events"] == truth.events());
    let mut calls = vec![0; truth.functions.len()];
    for row in rows(&report["table"], "rows")? {
        let name = row["function"].as_str().context("no name")?;
        let index = truth.function(name).with_context(|| name.to_owned())?;
        calls[index] = row["calls"].as_u64().context("no calls")?;
    }
    ensure!(calls == truth.calls(), "{calls:?}");
    Ok(())
}

/// Checks the counts of `record`, `snapshot` or `status`.
pub(crate) fn ensure_counted(row: &Value, truth: &GroundTruth) -> Result<()> {
    ensure!(row["events"] == truth.events() && row["lost"] == 0, "{row}");
    Ok(())
}
