//! Programs with little memory that start more threads than they had rings for.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::{Result, bail, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, MemoryGroup, Target, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::MMPermissions;
use shm_ring::Geometry;
use shm_ring::layout::{bucket, control, slot};
use xrayd::{
    process::{AttachOptions, Session},
    types::{Mode, Switch},
};

use crate::{
    adoption::wait_for_events,
    memory::RingsMapping,
    support::{attach_with, detach, pid_of, registry, switch},
    tracer::Tracer,
};

const RING_BYTES: u64 = Geometry::MIN_RING_BYTES;
/// Room for many rings of that size, and not for as many as are asked for.
const LIMIT: u64 = 256 << 20;
/// Slots that are open at the attach to a program with one thread.
const OPEN: usize = 64;
const THREADS: usize = 150;

/// The table and the rings of a target, as the handshake in its trampolines' mapping describes
/// them.
pub(crate) struct Tables {
    memory: File,
    geometry: Geometry,
    table: u64,
    rings: u64,
}

// === impl Tables ===

impl Tables {
    pub(crate) fn of(target: &Target) -> Result<Tables> {
        let pid = target.pid();
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let code = MMPermissions::READ | MMPermissions::EXECUTE | MMPermissions::PRIVATE;
        for map in procfs::process::Process::new(pid)?.maps()? {
            let mut words = [[0u8; 8]; 8];
            let is_read = map.perms == code
                && memory
                    .read_exact_at(words.as_flattened_mut(), map.address.0)
                    .is_ok();
            if is_read && words[0].starts_with(b"xrayd") {
                let [_, _, table, rings, _, _, shifts, _] = words.map(u64::from_le_bytes);
                let geometry = Geometry::from_word(shifts)?;
                return Ok(Tables {
                    memory,
                    geometry,
                    table,
                    rings,
                });
            }
        }
        bail!("no trampolines in process {pid}")
    }

    /// The address of the first page with slots.
    pub(crate) fn slots(&self) -> u64 {
        (self.table + self.geometry.slot_offset(0)) & !0xfff
    }

    fn word(&self, address: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Threads that have a ring.
    fn threads(&self) -> Result<BTreeSet<u64>> {
        let lines = (0..self.geometry.slots()).map(|index| self.geometry.control_offset(index));
        let owners = lines.map(|line| self.word(self.rings + line + control::OWNER));
        owners.filter(|owner| !matches!(owner, Ok(0))).collect()
    }

    /// Threads that have a ring, or a bucket because no slot was open for them.
    fn known(&self) -> Result<BTreeSet<u64>> {
        let mut known = self.threads()?;
        for index in 0..self.geometry.buckets() {
            let place = self.rings + self.geometry.bucket_offset(index);
            known.insert(self.word(place + bucket::TID)?);
        }
        known.remove(&0);
        Ok(known)
    }

    /// Slots that are not closed.
    fn open(&self) -> Result<usize> {
        let mut open = 0;
        for index in 0..self.geometry.slots() {
            let owner = self.word(self.table + self.geometry.slot_offset(index) + slot::TID)?;
            open += usize::from(owner & 0xffff_ffff != u64::from(slot::CLOSED));
        }
        Ok(open)
    }
}

fn options(mode: Mode) -> AttachOptions {
    AttachOptions {
        ring_bytes: RING_BYTES,
        mode,
        ..AttachOptions::default()
    }
}

/// One thread, and a group of its own with so much memory, which is to be dropped last. `None` if
/// no group can be made, which is told.
fn limited(name: &str, threads: usize, limit: u64) -> Result<Option<(MemoryGroup, Target)>> {
    let Some(group) = MemoryGroup::new(name)? else {
        return Ok(None);
    };
    let threads = threads.to_string();
    let arguments = ["--threads", &threads, "--calls", "0", "--first", "0"];
    let target = Target::spawn(Fixture::Counted, arguments)?;
    group.take(target.pid())?;
    group.limit(&limit.to_string())?;
    Ok(Some((group, target)))
}

fn wait_for_rings(target: &Target, threads: usize) -> Result<()> {
    let tables = Tables::of(target)?;
    wait_until(DEADLINE, "each thread has a ring", || {
        Ok((tables.threads()?.len() >= threads).then_some(()))
    })
}

/// Rings, and the group that they are in, take no more than they may; and a detach gives it back.
fn gives_back(
    target: &Target,
    group: &MemoryGroup,
    limit: u64,
    let_go: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let rings = RingsMapping::of(target)?.resident;
    ensure!(rings < limit / 2, "{rings} bytes of rings");
    // Else the threads take all processors from the tracer.
    kill(Pid::from_raw(target.pid()), Signal::SIGSTOP)?;
    let usage = group.usage()?;
    ensure!(usage < limit, "{usage}");
    let_go()?;
    let left = RingsMapping::of(target)?.resident;
    kill(Pid::from_raw(target.pid()), Signal::SIGCONT)?;
    ensure!(left < 1 << 20, "{left} bytes of rings are left");
    Ok(())
}

/// Threads that come later get rings, as far as memory allows. What they lose before that is
/// counted.
#[test]
fn threads_that_come_later_get_rings_in_a_limited_group() -> Result<()> {
    let Some((group, mut target)) = limited("growth", THREADS, LIMIT)? else {
        return Ok(());
    };
    let registry = registry();
    let attached = attach_with(&registry, &target, options(Mode::Stream))?;
    let notes = attached.report.notes.join("; ");
    ensure!(notes.contains("instead of 64 KiB for 1024"), "{notes}");
    let session = attached.session;
    switch(&session, Switch::On)?;
    target.send("go")?;
    wait_for_rings(&target, THREADS)?;
    ensure!(session.status().rings_refused.is_none());
    wait_for_events(&session, 100_000)?;
    let rings = RingsMapping::of(&target)?.resident;
    ensure!(rings < LIMIT / 2, "{rings} bytes of rings");
    ensure!(group.usage()? < LIMIT);
    let truth = GroundTruth::parse(&target.ask("stop", "result ")?)?;
    ensure!(truth.threads.len() == THREADS);
    let report = detach(&registry, &target)?;
    ensure!(
        report.events + report.lost == truth.events(),
        "{report:?}, but {} events",
        truth.events()
    );
    let left = RingsMapping::of(&target)?.resident;
    ensure!(left < 1 << 20, "{left} bytes of rings are left");
    Ok(())
}

/// Slots stay closed while nobody collects, and are opened by the next tracer; the one after that
/// finds what it has opened.
#[test]
fn the_next_tracer_opens_slots_that_a_killed_tracer_left_closed() -> Result<()> {
    let Some((group, mut target)) = limited("heirs", THREADS, LIMIT)? else {
        return Ok(());
    };
    let pid = pid_of(&target)?;
    let mut tracer = Tracer::spawn()?;
    tracer.ask(&format!("attach {pid} {RING_BYTES} 1024"))?;
    tracer.ask("on")?;
    let tables = Tables::of(&target)?;
    ensure!(tables.open()? == OPEN, "{} open", tables.open()?);
    tracer.kill()?;
    target.send("go")?;
    // How many of them find an open slot depends on their numbers, and so on other programs.
    wait_until(DEADLINE, "each thread has looked for a slot", || {
        Ok((tables.known()?.len() >= THREADS).then_some(()))
    })?;
    ensure!(tables.open()? == OPEN && tables.threads()?.len() <= OPEN);

    let mut tracer = Tracer::spawn()?;
    let adopted = tracer.ask(&format!("attach {pid} {RING_BYTES} 1024"))?;
    ensure!(adopted == "adopted=true", "{adopted}");
    tracer.ask("on")?;
    wait_for_rings(&target, THREADS)?;
    tracer.kill()?;
    let open = tables.open()?;
    ensure!(open < tables.geometry.slots() as usize, "{open} open");

    let registry = registry();
    let attached = attach_with(&registry, &target, options(Mode::Flight))?;
    ensure!(attached.report.adopted, "{:?}", attached.report);
    let session: &Session = &attached.session;
    switch(session, Switch::On)?;
    wait_for_events(session, 100_000)?;
    ensure!(
        tables.open()? == open,
        "{} open, not {open}",
        tables.open()?
    );
    gives_back(&target, &group, LIMIT, || {
        detach(&registry, &target).map(drop)
    })?;
    let truth = GroundTruth::parse(&target.ask("stop", "result ")?)?;
    ensure!(truth.threads.len() == THREADS);
    Ok(())
}

/// Where the limit leaves no room for more rings, threads go on without, which is said; and they
/// get rings as soon as there is room.
#[test]
fn rings_that_memory_is_refused_for_wait_for_it() -> Result<()> {
    const THREADS: usize = 96;
    // Half of it has room for 112 rings of 64 KiB: for these threads, the first one, and not for 16
    // that may come next. So some ring is refused, however the threads come.
    const TIGHT: u64 = 14 << 20;
    let Some((group, mut target)) = limited("refused", THREADS, TIGHT)? else {
        return Ok(());
    };
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Flight))?.session;
    let tables = Tables::of(&target)?;
    ensure!(tables.open()? == OPEN, "{} open", tables.open()?);
    switch(&session, Switch::On)?;
    target.send("go")?;
    let why = wait_until(DEADLINE, "memory is refused", || {
        Ok(session.status().rings_refused)
    })?;
    ensure!(why.contains("rings may take half of"), "{why}");
    ensure!(why.contains("control group"), "{why}");
    ensure!(tables.threads()?.len() < THREADS, "{why}");
    let lost = session.status().lost;
    wait_until(DEADLINE, "losses are counted", || {
        Ok((session.status().lost > lost).then_some(()))
    })?;
    let rings = RingsMapping::of(&target)?.resident;
    ensure!(rings < TIGHT / 2, "{rings} bytes of rings");

    group.limit(&LIMIT.to_string())?;
    wait_for_rings(&target, THREADS)?;
    wait_until(DEADLINE, "nothing is refused any more", || {
        Ok(session.status().rings_refused.is_none().then_some(()))
    })?;
    gives_back(&target, &group, LIMIT, || {
        detach(&registry, &target).map(drop)
    })?;
    let truth = GroundTruth::parse(&target.ask("stop", "result ")?)?;
    ensure!(truth.threads.len() == THREADS);
    Ok(())
}
