//! The outputs of a recording: a pipe, and the tree of its calls.

use std::fs;
use std::fs::File;
use std::io::Read as _;
use std::process::Stdio;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xray_trace::container::Completeness;

use super::{COUNTED, record};
use crate::scene::{Scene, all_on, ensure_as_compiled};
use crate::trace::{ensure_exact, read};

/// A trace on standard output is written from its beginning to its end, and nothing else is.
#[test]
fn a_recording_goes_into_a_pipe() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.alone()?, scene.with(&daemon)?] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        let notes = scene.path("notes");
        let mut child = cli
            .command(["record", &pid, "-o", "-"])
            .stdout(Stdio::piped())
            .stderr(File::create(&notes)?)
            .spawn()?;
        let mut pipe = child.stdout.take().context("no pipe")?;
        let reader = thread::spawn(move || {
            let mut trace = Vec::new();
            pipe.read_to_end(&mut trace).map(|_| trace)
        });
        wait_until(DEADLINE, "everything is on", || all_on(&target))?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT)?;
        let status = child.wait()?;
        let notes = fs::read_to_string(&notes)?;
        ensure!(status.success(), "{status}: {notes}");
        ensure!(
            notes.contains(" events, 0 lost, ") && !notes.contains("open it"),
            "{notes}"
        );
        let trace = reader.join().expect("the reader does not panic")?;
        ensure!(!scene.path("-").exists());
        let file = scene.path("piped.xtrace");
        fs::write(&file, trace)?;
        ensure!(read(&file)?.coverage().completeness == Completeness::Complete);
        ensure_exact(&file, &truth)?;
        ensure_as_compiled(&target)?;
        target.still_running()?;
        cli.run(["record", &pid, "-o", "-", "--json"])?
            .failed(2, &["both write to standard output"])?;
    }
    Ok(())
}

/// The calls of a tree in text, by the lines that begin calls or stand for several.
fn calls_in(tree: &str) -> Result<u64> {
    let mut calls = 0;
    for line in tree.lines() {
        // A time without a processor stands at the end.
        let line = match line.strip_suffix(" off-CPU") {
            Some(line) => line.rsplit_once("  ").context("no time")?.0,
            None => line,
        };
        if line.ends_with('{') || line.ends_with(';') {
            calls += 1;
        } else if let Some((_, figures)) = line.rsplit_once(";  × ") {
            let (number, _) = figures.split_once(", max ").context("no longest call")?;
            calls += number.replace(',', "").parse::<u64>()?;
        }
    }
    Ok(calls)
}

#[test]
fn a_tree_shows_one_thread_after_the_other_and_counts_every_call() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let running = record(&cli, &target, &[])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    ensure!(running.wait()?.code == Some(0));
    let calls: u64 = truth.calls().iter().sum();
    let tree = |options: &[&str]| cli.ok([&["tree", "f.xtrace"], options].concat());
    let headers = |tree: &str, tid: i32| {
        let header = format!(" ({tid})");
        let lines = tree.lines().filter(|line| !line.starts_with(' '));
        lines.filter(|line| line.ends_with(&header)).count()
    };
    for (options, each) in [
        (&[][..], 1),
        (&["--unfold"], 1),
        (&["--interleave"], 0),
        (&["--interleave", "--unfold"], 0),
    ] {
        let shown = tree(options)?;
        ensure!(calls_in(&shown)? == calls, "{options:?}: {shown}");
        ensure!(!options.contains(&"--unfold") || !shown.contains('×'));
        for thread in &truth.threads {
            let found = headers(&shown, thread.tid);
            ensure!(found == each, "{options:?}, {}: {shown}", thread.tid);
        }
    }
    Ok(())
}
