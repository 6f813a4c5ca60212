//! Targets that write to memory of the trampolines, and the damage of a bug that such a target
//! finds.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, opens_map_files, wait_until};
use shm_ring::Geometry;
use shm_ring::layout::{bucket, control, rings};
use xrayd::{
    process::{AttachOptions, Follow},
    target::Sleds,
    types::{Budget, Switch},
};

use crate::{
    adoption::wait_for_events,
    support::{assert_exact, attach_with, detach, pid_of, registry, switch, text_is_as_compiled},
    switching,
    tracer::Tracer,
};

/// The smallest rings: a chunk ends soon, and the rings begin where their mapping does.
pub(crate) const SMALL: AttachOptions = AttachOptions {
    ring_bytes: Geometry::MIN_RING_BYTES,
    max_threads: 4,
    start_time: None,
    thread: None,
    owner: None,
    caller: None,
    follow: Follow::None,
    sleds: Sleds::Needed,
    mode: xrayd::types::Mode::Stream,
    budget: Budget::None,
    by_policy: false,
};

/// The rings of a target, for a writer of its memory.
struct Rings {
    memory: File,
    geometry: Geometry,
    start: u64,
}

// === impl Rings ===

impl Rings {
    fn of(target: &Target) -> Result<Rings> {
        let pid = target.pid();
        let maps = procfs::process::Process::new(pid)?.maps()?;
        let shared = procfs::process::MMPermissions::SHARED;
        let rings = maps.into_iter().find(|map| map.perms.contains(shared));
        let path = format!("/proc/{pid}/mem");
        Ok(Rings {
            memory: File::options().read(true).write(true).open(path)?,
            geometry: Geometry::new(SMALL.ring_bytes, SMALL.max_threads)?,
            start: rings.context("no rings")?.address.0,
        })
    }

    /// The ring slots that have an owner.
    fn owned(&self) -> Result<Vec<u32>> {
        let mut owned = Vec::new();
        for index in 0..self.geometry.slots() {
            if self.load(index, control::OWNER)? != 0 {
                owned.push(index);
            }
        }
        Ok(owned)
    }

    fn load(&self, index: u32, field: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.memory
            .read_exact_at(&mut bytes, self.at(index, field))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn put(&self, offset: u64, value: u64) -> Result<()> {
        let at = self.start + offset;
        Ok(self.memory.write_all_at(&value.to_le_bytes(), at)?)
    }

    fn at(&self, index: u32, field: u64) -> u64 {
        self.start + self.geometry.control_offset(index) + field
    }
}

fn busy_thread() -> Result<Target> {
    let mut target = Target::spawn(
        Fixture::Counted,
        ["--threads", "1", "--calls", "0", "--first", "0"],
    )?;
    target.send("go")?;
    Ok(target)
}

/// A slow path that is never left is freed, and the events lost meanwhile are counted.
#[test]
fn a_slow_path_that_was_never_left_is_freed() -> Result<()> {
    let mut target = Target::spawn(Fixture::Switching, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, SMALL)?.session;
    switch(&session, Switch::On)?;
    switching::leave_the_slow_path(&mut target)?;
    wait_for_events(&session, 10_000)?;
    let report = detach(&registry, &target)?;
    ensure!(report.lost > 0, "{report:?}");
    Ok(())
}

/// Buckets name threads that do not exist, one thread twice, another one each time, and counts of
/// all kinds. The reported losses are the target's own fault.
#[test]
fn buckets_may_say_what_they_like() -> Result<()> {
    let mut target = busy_thread()?;
    let registry = registry();
    let session = attach_with(&registry, &target, SMALL)?.session;
    switch(&session, Switch::On)?;
    let seen = Rings::of(&target)?;
    let owner = wait_until(DEADLINE, "a ring has an owner", || {
        let index = seen.owned()?.first().copied();
        index
            .map(|index| seen.load(index, control::OWNER))
            .transpose()
    })?;
    seen.put(rings::BUCKETS_TAKEN, 1)?;
    for round in 1..=40u64 {
        for index in 0..seen.geometry.buckets() {
            let place = seen.geometry.bucket_offset(index);
            let number = u64::from(index) + 64 * round;
            let tid = match index % 4 {
                0 => owner,
                1 => number % 7,
                2 => number << 30,
                _ => 1_000_000 + number,
            };
            let count = [number, u64::MAX, 1 << 40, 0][usize::try_from(number / 4 % 4)?];
            seen.put(place + bucket::TID, tid)?;
            seen.put(place + bucket::LOST, count)?;
            seen.put(place + bucket::REPORTED, number % 3)?;
        }
        wait_for_events(&session, 20_000)?;
    }
    GroundTruth::parse(&target.ask("stop", "result ")?)?;
    let report = detach(&registry, &target)?;
    ensure!(
        report.events > 800_000 && report.lost > 1 << 40,
        "{report:?}"
    );
    Ok(())
}

/// A panic of the drain ends its session, which reports it, and nothing else.
#[test]
fn a_panic_while_draining_ends_one_session_and_is_reported() -> Result<()> {
    const BUG: &str = "freed the ring of a slow path that never ended";
    let mut target = Target::spawn(Fixture::Switching, [""; 0])?;
    let mut other = busy_thread()?;
    let mut tracer = Tracer::spawn_panicking_at(BUG)?;
    for pid in [pid_of(&other)?, pid_of(&target)?] {
        tracer.ask(&format!("attach {pid} 65536 4"))?;
        tracer.ask("on")?;
    }
    switching::leave_the_slow_path(&mut target)?;
    let state = wait_until(DEADLINE, "the session fails", || {
        let state = tracer.ask("state")?;
        Ok(state.starts_with("Failed").then_some(state))
    })?;
    ensure!(state.contains("provoked by a test"), "{state}");
    let listed = tracer.ask("listed")?;
    ensure!(
        listed.contains("SessionFailed") && listed.contains("provoked"),
        "{listed}"
    );
    for command in ["on".to_owned(), format!("attach {}", pid_of(&target)?)] {
        ensure!(tracer.refused(&command)? == "session-failed");
    }
    ensure!(tracer.trace()?.totals().calls > 0);
    // The process was released as by a detach.
    let report = tracer.ask("detach")?;
    ensure!(
        report.contains("sleds_on: 0, ") && !report.contains("sleds_off: 0, "),
        "{report}"
    );
    let answer = tracer.ask(&format!("attach {} 65536 4", pid_of(&target)?))?;
    ensure!(
        answer == format!("adopted={}", opens_map_files()?),
        "{answer}"
    );
    tracer.ask("on")?;
    wait_until(DEADLINE, "events", || {
        Ok((tracer.events()? > 1000).then_some(()))
    })?;
    tracer.ask("detach")?;

    tracer.ask(&format!("use {}", pid_of(&other)?))?;
    ensure!(tracer.ask("state")?.starts_with("Tracing"));
    let before = tracer.events()?;
    wait_until(DEADLINE, "events", || {
        Ok((tracer.events()? > before).then_some(()))
    })?;
    tracer.ask("detach")?;
    GroundTruth::parse(&other.ask("stop", "result ")?)?;
    target.still_running()
}

/// A panic of the controller of a session ends that session as well: its sleds go off, and
/// every client gets a report.
#[test]
fn a_panic_of_a_control_thread_ends_one_session_and_is_reported() -> Result<()> {
    const BUG: &str = "library unloaded";
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let mut other = busy_thread()?;
    let mut tracer = Tracer::spawn_panicking_at(BUG)?;
    for pid in [pid_of(&other)?, pid_of(&target)?] {
        tracer.ask(&format!("attach {pid} 65536 4"))?;
        tracer.ask("on")?;
    }
    load_and_call(&mut target, &mut tracer)?;
    target.ask("unload 0", "unloaded")?;
    let state = wait_until(DEADLINE, "the session fails", || {
        // A request finds the failure.
        let state = tracer.ask("state")?;
        Ok(state.starts_with("Failed").then_some(state))
    })?;
    ensure!(state.contains("provoked by a test"), "{state}");
    let listed = tracer.ask("listed")?;
    ensure!(
        listed.contains("SessionFailed") && listed.contains("provoked"),
        "{listed}"
    );
    text_is_as_compiled(&target, target.program(), target.program())?;
    for command in ["on".to_owned(), format!("attach {}", pid_of(&target)?)] {
        ensure!(tracer.refused(&command)? == "session-failed");
    }
    // The events recorded before are there.
    ensure!(tracer.trace()?.totals().calls > 0);
    let report = tracer.ask("detach")?;
    ensure!(
        report.contains("sleds_on: 0, ") && !report.contains("sleds_off: 0, "),
        "{report}"
    );
    tracer.ask(&format!("attach {} 65536 4", pid_of(&target)?))?;
    tracer.ask("on")?;
    load_and_call(&mut target, &mut tracer)?;
    wait_until(DEADLINE, "events", || {
        Ok((tracer.events()? > 50).then_some(()))
    })?;
    tracer.ask("detach")?;
    text_is_as_compiled(&target, target.program(), target.program())?;

    tracer.ask(&format!("use {}", pid_of(&other)?))?;
    ensure!(tracer.ask("state")?.starts_with("Tracing"));
    let before = tracer.events()?;
    wait_until(DEADLINE, "events", || {
        Ok((tracer.events()? > before).then_some(()))
    })?;
    tracer.ask("detach")?;
    GroundTruth::parse(&other.ask("stop", "result ")?)?;
    target.still_running()
}

/// Lets the target load a library, and call it 50 times once the tracer has switched it on.
fn load_and_call(target: &mut Target, tracer: &mut Tracer) -> Result<()> {
    target.ask("load 0 plugin_a.so", "loaded")?;
    wait_until(DEADLINE, "the library is switched on", || {
        let armed = tracer.ask("armed plugin_a.so")?;
        Ok((!armed.is_empty()).then_some(()))
    })?;
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    Ok(())
}

/// A target may do anything to the memory that it shares with the tracer. The tracer lives, needs
/// little memory, and gets an honest target's calls right.
#[test]
fn no_harm_to_the_rings_harms_the_tracer_or_another_session() -> Result<()> {
    for harm in ["garbage", "claims", "punch", "truncate", "move", "unmap"] {
        survives(harm).with_context(|| format!("harm {harm:?}"))?;
    }
    Ok(())
}

fn survives(harm: &str) -> Result<()> {
    /// The memory that the tracer retains for a session in this test, and the most that it may
    /// need.
    const RETAINED: u64 = 8 << 20;
    const MEMORY: u64 = 256 << 20;
    let mut target = Target::spawn(Fixture::Hostile, [""; 0])?;
    let mut honest = Target::spawn(
        Fixture::Counted,
        ["--threads", "2", "--calls", "3000", "--first", "0"],
    )?;
    let mut tracer = Tracer::spawn()?;
    tracer.ask(&format!("retain {RETAINED}"))?;
    for pid in [pid_of(&honest)?, pid_of(&target)?] {
        tracer.ask(&format!("attach {pid}"))?;
        tracer.ask("on")?;
    }
    wait_until(DEADLINE, "events", || {
        Ok((tracer.events()? > 1000).then_some(()))
    })?;
    target.send(harm)?;
    let truth = GroundTruth::parse(&honest.ask("go", "result ")?)?;
    let done = target.line_with("done ", DEADLINE)?;
    // The length of the rings is sealed.
    let result = match harm {
        "truncate" => nix::errno::Errno::EPERM as i32,
        "claims" => done.rsplit(' ').next().unwrap_or_default().parse()?,
        _ => 0,
    };
    ensure!(done == format!("done {harm} {result}"), "{done}");
    tracer.ask(&format!("use {}", pid_of(&honest)?))?;
    assert_exact(&tracer.trace()?, &truth)?;
    tracer.ask("detach")?;
    tracer.ask(&format!("use {}", pid_of(&target)?))?;
    tracer.trace()?;
    let report = tracer.ask("detach")?;
    ensure!(report.contains("sleds_on: 0, "), "{report}");
    let status = procfs::process::Process::new(tracer.pid())?.status()?;
    let high = status.vmhwm.context("no VmHWM")? << 10;
    ensure!(high < MEMORY, "the tracer took {high} bytes");
    target.ask("calls", "calls ")?;
    Ok(())
}
