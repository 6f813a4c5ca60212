//! `xrayctl` on a real terminal: progress, colours, the width of tables, and Ctrl-C from the
//! keyboard.

use std::fs;

use anyhow::{Result, ensure};
use integration::{Fixture, GroundTruth, Target};
use nix::sys::signal::Signal;

use crate::scene::{Scene, all_on, ensure_as_compiled};
use crate::terminal::Terminal;
use crate::trace::ensure_exact;

const COUNTED: [&str; 4] = ["--threads", "3", "--calls", "300"];

/// Progress while patching and while recording. Ctrl-C ends the recording, and the file is
/// complete.
#[test]
fn a_recording_shows_its_progress_and_ends_on_ctrl_c() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let record = ["record", &pid, "-o", "f.xtrace"];
    let mut terminal = Terminal::start(&cli.command(record), 80)?;
    terminal.until("everything is on", |seen| {
        Ok(all_on(&target)?.is_some()
            && seen.contains("patching functions")
            && seen.contains("recording 0 events"))
    })?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    terminal.until("events are shown", |seen| {
        Ok(seen.contains("lost, ") && seen.matches("recording ").count() > 3)
    })?;
    terminal.interrupt()?;
    let ended = terminal.wait()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    ensure!(
        ended.seen.contains("\u{1b}[32m0 lost\u{1b}[0m"),
        "{ended:?}"
    );
    ensure!(
        ended.seen.contains("open it: xrayctl view f.xtrace"),
        "{ended:?}"
    );
    ensure!(ended.seen.contains("reading the trace back"), "{ended:?}");
    ensure!(!ended.seen.contains("xrayctl: "), "{ended:?}");
    ensure_exact(&scene.path("f.xtrace"), &truth)?;
    ensure_as_compiled(&target)?;
    target.still_running()?;

    // With files as outputs, only the summary is printed.
    let ran = cli.run(["record", &pid, "--duration", "200ms", "-o", "g.xtrace"])?;
    ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    ensure!(!ran.out.contains(['\r', '\u{1b}']), "{ran:?}");

    // A table for a narrow terminal, with and without colours.
    for (no_color, coloured) in [(None, true), (Some("1"), false)] {
        let mut command = cli.command(["report", "f.xtrace", "--table"]);
        if let Some(value) = no_color {
            command.env("NO_COLOR", value);
        }
        let ended = Terminal::start(&command, 60)?.wait()?;
        ensure!(ended.code == Some(0), "{ended:?}");
        ensure!(ended.seen.contains('\u{1b}') == coloured, "{ended:?}");
        ensure!(ended.seen.contains("… no room for "), "{ended:?}");
        if !coloured {
            let widest = ended
                .seen
                .lines()
                .skip(1)
                .map(|line| line.trim_end().chars().count());
            ensure!(widest.max() <= Some(60), "{ended:?}");
        }
    }
    Ok(())
}

#[test]
fn no_trace_goes_to_a_terminal() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let ended = Terminal::start(&cli.command(["record", &pid, "-o", "-"]), 80)?.wait()?;
    ensure!(ended.code == Some(2), "{ended:?}");
    ensure!(
        ended.seen.contains("standard output is a terminal"),
        "{ended:?}"
    );
    ensure_as_compiled(&target)?;
    target.still_running()
}

/// A second Ctrl-C while the process is being detached only prints a note.
#[test]
fn a_second_ctrl_c_does_not_leave_a_process_half_detached() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let mut terminal = Terminal::start(&cli.command(["record", &pid, "-o", "f"]), 80)?;
    terminal.until("everything is on", |_| Ok(all_on(&target)?.is_some()))?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    daemon.stand_still()?;
    // The first Ctrl-C makes the recorder call the daemon, which does not answer.
    terminal.interrupt_until("the second is answered", |seen| {
        seen.contains("xrayctl: detaching is under way")
    })?;
    daemon.signal(Signal::SIGCONT)?;
    let ended = terminal.wait()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    ensure_exact(&scene.path("f"), &truth)?;
    ensure_as_compiled(&target)?;
    target.still_running()
}

/// In the middle of a long output, Ctrl-C ends the program like any other, without a message.
#[test]
fn ctrl_c_ends_a_long_report() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "1", "--calls", "20000"])?;
    let pid = target.pid().to_string();
    let mut running = cli.start(["record", &pid, "-o", "f"])?;
    running.until("everything is on", || all_on(&target))?;
    GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    ensure!(running.wait()?.code == Some(0));
    for more in [&[][..], &["--json"]] {
        let report = [&["report", "f", "--tree", "--unfold", "--limit", "0"], more].concat();
        let mut terminal = Terminal::start(&cli.command(report), 80)?;
        terminal.until("the tree is under way", |seen| {
            Ok(seen.lines().count() > 100)
        })?;
        terminal.interrupt()?;
        let ended = terminal.wait()?;
        ensure!(
            ended.signal == Some(Signal::SIGINT as i32),
            "{:?} {:?}",
            ended.code,
            ended.signal
        );
        ensure!(!ended.seen.contains("panicked") && !ended.seen.contains("xrayctl: "));
    }
    Ok(())
}

/// An error of the file is one line, before the process is changed, or after it was detached.
#[test]
fn a_file_that_cannot_be_written_leaves_the_process_as_it_was() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    fs::write(scene.path("old"), "old")?;
    for (file, why) in [
        ("old", "old already exists; --force replaces it"),
        (
            "no-such-directory/f",
            "cannot write no-such-directory/f: No such file",
        ),
        (".", ". is not a regular file"),
        ("/dev/full", "/dev/full is not a regular file"),
    ] {
        cli.run(["record", &pid, "-o", file])?.failed(1, &[why])?;
    }
    ensure!(fs::read(scene.path("old"))? == b"old");
    // The pipe has no reader.
    nix::unistd::mkfifo(&scene.path("pipe"), nix::sys::stat::Mode::S_IRWXU)?;
    cli.run(["record", &pid, "--force", "-o", "pipe"])?
        .failed(1, &["cannot write pipe: No such device or address"])?;
    ensure_as_compiled(&target)?;

    if !integration::is_root_for("a_file_that_cannot_be_written_leaves_the_process_as_it_was")? {
        return Ok(());
    }
    let small = SmallDisk::mount(scene.path("small"))?;
    let daemon = scene.daemon()?;
    for cli in [cli, scene.with(&daemon)?] {
        let mut target = Target::spawn(Fixture::Counted, ["--threads", "1", "--calls", "20000"])?;
        let pid = target.pid().to_string();
        let mut running = cli.start(["record", &pid, "--force", "-o", "small/f"])?;
        running.until("everything is on", || all_on(&target))?;
        GroundTruth::parse(&target.ask("go", "result ")?)?;
        let ran = running.wait()?;
        let (error, kept) = ("small/f: No space left", "small/f holds the events up to");
        ran.failed(1, &[error, kept])?;
        ensure_as_compiled(&target)?;
        ensure!(fs::metadata(scene.path("small/f"))?.len() > 0);
        target.still_running()?;
    }
    drop(small);
    Ok(())
}

/// A disk of four pages. Dropping this unmounts it.
struct SmallDisk(std::path::PathBuf);

// === impl SmallDisk ===

impl SmallDisk {
    fn mount(at: std::path::PathBuf) -> Result<Self> {
        fs::create_dir(&at)?;
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), &at, Some("tmpfs"), flags, Some("size=16k"))?;
        Ok(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A disk that stays disappears with the next start of the machine.
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}
