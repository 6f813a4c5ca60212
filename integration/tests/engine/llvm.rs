//! The same program under LLVM's own runtime, and our trace through LLVM's own tools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{
    CallEvent, DEADLINE, EventKind, Fixture, GroundTruth, SequenceHash, Target, Tool, build,
};
use xray_trace::analysis::{Filter, account};
use xray_trace::sink::{Fdr, Sink as _};
use xrayd::types::Switch;

use crate::support::{attach, detach, registry, retained, switch};

/// The events of each thread in the output of `llvm-xray convert`.
type Threads = BTreeMap<i32, (Vec<u64>, SequenceHash)>;

fn convert(log: &Path, program: &Path, truth: &GroundTruth) -> Result<Threads> {
    let text = Tool::LlvmXray19.run([
        "convert".as_ref(),
        "--symbolize".as_ref(),
        "-f".as_ref(),
        "yaml".as_ref(),
        "-m".as_ref(),
        program.as_os_str(),
        log.as_os_str(),
    ])?;
    let mut threads = Threads::new();
    for line in text.lines().filter(|line| line.contains("func-id:")) {
        let field = |key: &str| {
            let rest = line.split_once(key).map(|(_, rest)| rest);
            rest.and_then(|rest| rest.split(',').next())
                .map(|value| value.trim_matches(|c| c == ' ' || c == '\'' || c == '}'))
                .with_context(|| format!("no {key} in {line}"))
        };
        let function = truth
            .function(field("function: ")?)
            .with_context(|| line.to_owned())?;
        let kind = match field("kind: ")? {
            "function-enter" | "function-enter-arg" => EventKind::Entry,
            "function-exit" => EventKind::Exit,
            "function-tail-exit" => EventKind::TailExit,
            other => anyhow::bail!("an event of kind {other}"),
        };
        let (calls, hash) = threads
            .entry(field("thread: ")?.parse()?)
            .or_insert_with(|| (vec![0; truth.functions.len()], SequenceHash::new()));
        if kind == EventKind::Entry {
            calls[function] += 1;
        }
        hash.push(CallEvent { kind, function });
    }
    Ok(threads)
}

/// Calls by function in all threads, as `llvm-xray account` counts them.
fn account_calls(log: &Path, program: &Path, truth: &GroundTruth) -> Result<Vec<u64>> {
    let text = Tool::LlvmXray19.run([
        "account".as_ref(),
        "-k".as_ref(),
        "-f".as_ref(),
        "csv".as_ref(),
        "-m".as_ref(),
        program.as_os_str(),
        log.as_os_str(),
    ])?;
    let mut calls = vec![0; truth.functions.len()];
    for line in text.lines().skip(1) {
        let count = line.split(',').nth(1).context("no count")?;
        let name = line.rsplit('"').nth(1).context("no name")?;
        let function = truth.function(name).with_context(|| line.to_owned())?;
        calls[function] += count.parse::<u64>()?;
    }
    Ok(calls)
}

fn traced(arguments: &[&str]) -> Result<(GroundTruth, xray_trace::model::Trace)> {
    let mut target = Target::spawn(Fixture::Counted, arguments)?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    detach(&registry, &target)?;
    Ok((truth, retained(&session)?))
}

#[test]
fn the_runtime_of_llvm_records_the_same_calls() -> Result<()> {
    let arguments = ["--threads", "2", "--calls", "300", "--seed", "11"];
    let (truth, trace) = traced(&arguments)?;
    let ours = account(&trace, &Filter::default(), Default::default());
    let mut calls = vec![0; truth.functions.len()];
    for row in &ours.rows {
        let name = row.subject.name(&trace).into_owned();
        calls[truth.function(&name).context(name)?] += row.calls;
    }
    ensure!(calls == truth.calls());
    for mode in ["xray-fdr", "xray-basic"] {
        let dir = tempfile::tempdir()?;
        let program = build(Fixture::CountedLlvm)?;
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .args(["--mode", mode])
            .current_dir(dir.path());
        let mut target = Target::spawn_command(command)?;
        let theirs = GroundTruth::parse(&target.ask("go", "result ")?)?;
        target.send("quit")?;
        ensure!(target.wait(DEADLINE)?.success());
        let log = only_file_in(dir.path())?;
        let threads = convert(&log, &program, &theirs)?;
        let mut sums = vec![0; calls.len()];
        for (calls, _) in threads.values() {
            for (sum, calls) in sums.iter_mut().zip(calls) {
                *sum += calls;
            }
        }
        ensure!(sums == calls, "{mode}: {sums:?} instead of {calls:?}");
        // The order of each thread's events, too.
        for (ours, theirs) in truth.threads.iter().zip(&theirs.threads) {
            let (_, hash) = &threads[&theirs.tid];
            ensure!(hash.value() == ours.hash, "{mode}: another order");
        }
    }
    Ok(())
}

#[test]
fn llvm_reads_our_log_and_agrees_with_our_table() -> Result<()> {
    for threads in ["1", "4"] {
        let (truth, trace) = traced(&["--threads", threads, "--calls", "300", "--seed", "12"])?;
        let dir = tempfile::tempdir()?;
        let log = dir.path().join("ours.fdr");
        let mut bytes = Vec::new();
        let report = Fdr.write(&trace, &mut bytes)?;
        // A snapshot has no run times. So the log does not have the processors, and nothing else is
        // missing.
        let [(what, records)] = &report.left_out[..] else {
            anyhow::bail!("{report:?}");
        };
        ensure!(what.starts_with("processors of records"), "{what}");
        let calls: u64 = truth.calls().iter().sum();
        ensure!(*records == 2 * calls, "{records} records of {calls} calls");
        std::fs::write(&log, bytes)?;
        let program = build(Fixture::Counted)?;
        let seen = convert(&log, &program, &truth)?;
        for thread in &truth.threads {
            let (calls, hash) = &seen[&thread.tid];
            ensure!(*calls == thread.calls && hash.value() == thread.hash);
        }
        // `llvm-xray account` needs one order of time over all threads. A log of blocks does not
        // have it.
        if threads == "1" {
            ensure!(account_calls(&log, &program, &truth)? == truth.calls());
        }
    }
    Ok(())
}

fn only_file_in(dir: &Path) -> Result<PathBuf> {
    let mut entries = std::fs::read_dir(dir)?;
    let first = entries.next().context("no log")??.path();
    ensure!(entries.next().is_none(), "several logs");
    Ok(first)
}
