//! Other writers of the same sleds: LLVM's own runtime, debuggers, the kernel's probes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use xrayd::{
    Reason,
    process::{Registry, Session},
    types::{Run, Switch},
};

use crate::support::{
    attach, detach, everything, memory, pid_of, registry, retained, soak, switch, tally,
};

fn address_of(session: &Session, name: &str) -> Result<u64> {
    let rows = session.functions(None)?;
    let row = rows.iter().find(|row| row.name.starts_with(name));
    Ok(row.context("no such function")?.address)
}

fn wait_for(session: &Session, events: u64) -> Result<()> {
    wait_until(DEADLINE, "its events", || {
        Ok((session.status().events == events).then_some(()))
    })
}

fn is_refused(registry: &Registry, target: &Target) -> Result<()> {
    let error = attach(registry, target).err().context("attached")?;
    let refusal = error.downcast_ref::<xrayd::Refusal>();
    let refusal = refusal.context("no refusal")?;
    ensure!(refusal.reason == Reason::AlreadyPatched, "{refusal}");
    Ok(())
}

/// The runtime takes over sleds that are ours, and does not give them back (P28).
#[test]
fn a_program_that_patches_itself_while_it_is_traced() -> Result<()> {
    let mut target = Target::spawn(Fixture::Itself, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let sleds = switch(&session, Switch::On)?.sleds;
    ensure!(target.ask("go", "done")? == "done 55 0");
    wait_for(&session, 20)?;
    target.ask("patch", "patched")?;
    ensure!(target.ask("go", "done")? == "done 55 20");
    // Sleds that are the runtime's now are found, reported, and not written.
    let report = session.toggle(&everything(), Switch::Off, Run::Real)?;
    ensure!(report.foreign == sleds && report.sleds == 0, "{report:?}");
    ensure!(target.ask("go", "done")? == "done 55 40");
    let refused = registry.detach(pid_of(&target)?)?;
    ensure!(
        refused.sleds_on == sleds && refused.sleds_off == 0,
        "{refused:?}"
    );
    let counts = tally(&retained(&session)?)?;
    ensure!(counts.values().eq([&[10, 10, 0]]), "{counts:?}");
    // The program cannot be traced while its sleds are the runtime's.
    let error = attach(&registry, &target).err().context("attached")?;
    let refusal = error
        .downcast_ref::<xrayd::Refusal>()
        .context("no refusal")?;
    ensure!(refusal.reason == Reason::AlreadyPatched, "{refusal}");
    ensure!(target.ask("go", "done")? == "done 55 60");
    // Nor can it be traced afterwards: a thread may still stand in the bytes that the runtime
    // leaves behind in the sleds.
    target.ask("unpatch", "unpatched")?;
    is_refused(&registry, &target)?;
    ensure!(target.ask("go", "done")? == "done 55 60");
    target.send("quit")?;
    ensure!(target.wait(DEADLINE)?.success());
    Ok(())
}

/// A breakpoint of a debugger or a probe of the kernel puts `int3` in place of a sled's first byte
/// (P29). Such sleds are left alone, even if they are on.
#[test]
fn a_breakpoint_on_a_sled_is_left_alone() -> Result<()> {
    const INT3: [u8; 1] = [0xcc];
    let mut target = Target::spawn(Fixture::Dso, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let inner = address_of(&session, "library_inner")?;
    let memory = memory(&target)?;
    let byte = || -> Result<[u8; 1]> {
        let mut byte = [0];
        memory.read_exact_at(&mut byte, inner)?;
        Ok(byte)
    };
    let compiled = byte()?;
    memory.write_all_at(&INT3, inner)?;
    let report = session.toggle(&everything(), Switch::On, Run::Real)?;
    ensure!(report.foreign == 1 && byte()? == INT3, "{report:?}");
    // The debugger removes the breakpoint.
    memory.write_all_at(&compiled, inner)?;
    ensure!(target.ask("go", "done")? == "done 1016");
    wait_for(&session, 5)?;
    // The sleds that were left alone are tried again.
    ensure!(switch(&session, Switch::On)?.sleds == 6);
    ensure!(
        session
            .toggle(&everything(), Switch::On, Run::Real)?
            .changed
            == 0
    );
    ensure!(target.ask("go", "done")? == "done 1016");
    wait_for(&session, 11)?;
    // Now a breakpoint on a sled that is on.
    let armed = byte()?;
    memory.write_all_at(&INT3, inner)?;
    let report = session.toggle(&everything(), Switch::Off, Run::Real)?;
    ensure!(report.foreign == 1 && byte()? == INT3, "{report:?}");
    // The debugger removes the breakpoint, and the sled is on again.
    memory.write_all_at(&armed, inner)?;
    ensure!(target.ask("go", "done")? == "done 1016");
    wait_for(&session, 12)?;
    let report = detach(&registry, &target)?;
    ensure!(byte()? == compiled, "{report:?}");
    ensure!(target.ask("go", "done")? == "done 1016");
    Ok(())
}

/// A byte of text that another tracer writes, and the memory that it checks afterwards.
struct Breakpoints<'a> {
    memory: &'a File,
    at: u64,
    compiled: u8,
}

// === impl Breakpoints ===

impl Breakpoints<'_> {
    /// The number of looks at a breakpoint before its removal, and again after it.
    const LOOKS: u32 = 20;

    /// Sets a breakpoint and removes it, again and again, until `done`. Returns the number of
    /// rounds.
    fn come_and_go(&self, done: &AtomicBool) -> Result<u64> {
        let mut rounds = 0;
        while !done.load(Ordering::Relaxed) {
            self.stays(0xcc).context("a breakpoint is gone")?;
            self.stays(self.compiled)
                .context("a breakpoint is back that was removed")?;
            rounds += 1;
        }
        Ok(rounds)
    }

    fn stays(&self, value: u8) -> Result<()> {
        self.memory.write_all_at(&[value], self.at)?;
        for _ in 0..Self::LOOKS {
            let mut byte = [0];
            self.memory.read_exact_at(&mut byte, self.at)?;
            ensure!(byte == [value], "{byte:x?} at {:#x}", self.at);
        }
        Ok(())
    }
}

/// Another tracer's breakpoint in the main program, between two sleds: a toggle neither erases it
/// nor restores it (P29). A restored breakpoint that its tracer has forgotten would kill the
/// program with SIGTRAP.
#[test]
fn a_breakpoint_between_sleds_comes_and_goes_while_they_are_switched() -> Result<()> {
    let mut target = Target::spawn(Fixture::Many400, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let memory = memory(&target)?;
    let mut rows = session.functions(None)?;
    rows.sort_by_key(|row| row.address);
    // The first byte of a function behind its entry sled.
    let at = rows.get(rows.len() / 2).context("no functions")?.address + 11;
    let mut compiled = [0];
    memory.read_exact_at(&mut compiled, at)?;
    let breakpoints = Breakpoints {
        memory: &memory,
        at,
        compiled: compiled[0],
    };
    let done = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let other = scope.spawn(|| breakpoints.come_and_go(&done));
        let toggled = (0..soak(100, 10_000)).try_for_each(|_| {
            switch(&session, Switch::On)?;
            switch(&session, Switch::Off).map(|_| ())
        });
        done.store(true, Ordering::Relaxed);
        toggled?;
        other.join().ok().context("the other tracer panicked")?
    })?;
    ensure!(rounds > 10, "{rounds} breakpoints");
    target.still_running()?;
    detach(&registry, &target)?;
    Ok(())
}
