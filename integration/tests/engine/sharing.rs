//! Programs that exchange a tracer's file for another one, or take its memory away
//! (threat-model.md, 3).

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, is_root_for, opens_map_files, wait_until};
use procfs::process::{MMPermissions, MemoryMap, Process};
use shm_ring::layout::table;
use xrayd::{Reason, process::AttachOptions, types::Switch};

use crate::{
    support::{attach, detach, memory, pid_of, registry, switch, tid},
    tracer::Tracer,
};

const CONTENT: &[u8] = b"a file that nobody traces\n";

/// A file of root's. Returns its path as an argument.
fn precious(dir: &Path) -> Result<String> {
    let path = dir.join("precious");
    fs::write(&path, CONTENT)?;
    path.into_os_string()
        .into_string()
        .ok()
        .context("a path that is no text")
}

/// The mapping of the rings: the only one that is shared and writable.
fn rings_of(target: &Target) -> Result<MemoryMap> {
    let wanted = MMPermissions::SHARED | MMPermissions::WRITE;
    let mut maps = Process::new(target.pid())?.maps()?.into_iter();
    maps.find(|map| map.perms.contains(wanted))
        .context("no rings")
}

/// The address of the table in the handshake.
fn table_of(target: &Target) -> Result<u64> {
    let memory = memory(target)?;
    for map in Process::new(target.pid())?.maps()? {
        let mut words = [0; 24];
        if map.perms.contains(MMPermissions::EXECUTE)
            && memory.read_exact_at(&mut words, map.address.0).is_ok()
            && words.starts_with(b"xrayd")
        {
            let table = words.last_chunk().context("too short")?;
            return Ok(u64::from_le_bytes(*table));
        }
    }
    anyhow::bail!("no handshake")
}

/// The program puts a descriptor of another file in place of the borrowed thread's own, and the
/// main thread has ended (P3).
#[test]
fn no_file_outside_is_changed_while_descriptors_are_swapped() -> Result<()> {
    if !is_root_for("no_file_outside_is_changed_while_descriptors_are_swapped")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let path = precious(dir.path())?;
    for _ in 0..10 {
        let mut target = Target::spawn(Fixture::Descriptors, ["swap", &path])?;
        let registry = registry();
        // The attach may be refused, because no descriptor of ours stays ours.
        match registry.attach(pid_of(&target)?, AttachOptions::default()) {
            Ok(_) => {
                detach(&registry, &target)?;
            }
            Err(refusal) => {
                ensure!(
                    fs::read(&path)? == CONTENT,
                    "the file was changed: {refusal}"
                );
                ensure!(refusal.reason == Reason::Io, "{refusal}");
            }
        }
        ensure!(fs::read(&path)? == CONTENT, "the file was changed");
        target.ask("call", "called")?;
    }
    Ok(())
}

/// The borrowed thread has a table of descriptors of its own. Its numbers mean other files in the
/// main thread.
#[test]
fn a_thread_with_descriptors_of_its_own_is_borrowed() -> Result<()> {
    if !is_root_for("a_thread_with_descriptors_of_its_own_is_borrowed")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let path = precious(dir.path())?;
    let mut target = Target::spawn(Fixture::Descriptors, ["private", &path])?;
    let worker = target.ask("worker", "worker ")?;
    let worker = worker.trim_start_matches("worker ").parse()?;
    let registry = registry();
    let options = AttachOptions {
        thread: Some(tid(worker)?),
        ..AttachOptions::default()
    };
    let session = registry.attach(pid_of(&target)?, options)?.session;
    ensure!(fs::read(&path)? == CONTENT, "the file was changed");
    switch(&session, Switch::On)?;
    target.ask("call", "called")?;
    wait_until(DEADLINE, "the call is recorded", || {
        Ok((session.status().events == 2).then_some(()))
    })?;
    detach(&registry, &target)?;
    // Neither thread has a descriptor of the rings.
    for thread in [target.pid(), worker] {
        let open = fs::read_dir(format!("/proc/{thread}/fd"))?;
        for entry in open {
            let link = fs::read_link(entry?.path())?;
            let link = link.to_string_lossy();
            ensure!(!link.contains("memfd"), "{link} stays open");
        }
    }
    ensure!(fs::read(&path)? == CONTENT, "the file was changed");
    Ok(())
}

/// The program exchanges the mapping at the place of the rings all the time, and cuts its file
/// after a takeover.
#[test]
fn memory_that_can_shrink_is_not_taken_over() -> Result<()> {
    if !opens_map_files()? {
        return integration::not_run("memory_that_can_shrink_is_not_taken_over", "no map_files");
    }
    for _ in 0..30 {
        let mut target = Target::spawn(Fixture::Descriptors, ["flip"])?;
        let mut tracer = Tracer::spawn()?;
        let attach = format!("attach {} 65536 4", target.pid());
        tracer.ask(&attach)?;
        tracer.ask("detach")?;
        target.send("flip")?;
        let attached = tracer.ask(&attach).is_ok();
        target.ask("cut", "done")?;
        // Now the tracer reads its rings. The tracer lives, whatever they contain.
        if attached {
            tracer.ask("on")?;
            tracer.ask("events")?;
            tracer.ask("detach")?;
        }
        tracer.ask("alive")?;
    }
    Ok(())
}

/// Rings that shrink in spite of all seals end their session, and nothing else.
#[test]
fn rings_that_shrink_fail_their_session_and_no_other() -> Result<()> {
    if !opens_map_files()? {
        return integration::not_run("rings_that_shrink_fail_their_session", "no map_files");
    }
    let mut target = Target::spawn(Fixture::Descriptors, ["quiet"])?;
    let mut other = Target::spawn(Fixture::Descriptors, ["quiet"])?;
    let mut tracer = Tracer::spawn()?;
    for pid in [other.pid(), target.pid()] {
        tracer.ask(&format!("attach {pid}"))?;
        tracer.ask("on")?;
    }
    target.ask("call", "called")?;
    wait_until(DEADLINE, "the call is recorded", || {
        Ok((tracer.events()? == 2).then_some(()))
    })?;
    let (start, end) = rings_of(&target)?.address;
    let path = format!("/proc/{}/map_files/{start:x}-{end:x}", target.pid());
    fs::File::options().write(true).open(path)?.set_len(0)?;
    let state = wait_until(DEADLINE, "the session fails", || {
        let state = tracer.ask("state")?;
        Ok(state.starts_with("Failed").then_some(state))
    })?;
    ensure!(state.contains("rings"), "{state}");
    ensure!(tracer.refused("on")? == "session-failed");
    let report = tracer.ask("detach")?;
    ensure!(report.contains("sleds_on: 0, "), "{report}");
    target.ask("call", "called")?;

    tracer.ask(&format!("use {}", other.pid()))?;
    other.ask("call", "called")?;
    wait_until(DEADLINE, "the call is recorded", || {
        Ok((tracer.events()? == 2).then_some(()))
    })?;
    tracer.ask("detach")?;
    Ok(())
}

/// The table names another user's process, and that process has the same word at the same address.
#[test]
fn a_table_that_names_another_users_process_is_not_believed() -> Result<()> {
    if !is_root_for("a_table_that_names_another_users_process_is_not_believed")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let program = integration::copy_into(Fixture::Descriptors, dir.path())?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let start = |uid: u32| {
        // Both programs run at the same addresses.
        let mut command = Command::new("setarch");
        command.args(["-R", "--"]).arg(&program);
        command.uid(uid).gid(uid).current_dir("/");
        Target::spawn_command(command)
    };
    let registry = registry();
    let (victim, forger) = (start(0)?, start(65_534)?);
    let mut mine = Vec::new();
    for target in [&victim, &forger] {
        attach(&registry, target)?;
        let table = table_of(target)?;
        let mut word = [0; 8];
        memory(target)?.read_exact_at(&mut word, table + table::MINE)?;
        mine.push((table, word));
    }
    ensure!(mine[0].0 == mine[1].0, "other addresses: {mine:x?}");
    detach(&registry, &forger)?;
    memory(&forger)?.write_all_at(&mine[0].1, mine[1].0 + table::MINE)?;
    let attached = attach(&registry, &forger).context("it was believed")?;
    ensure!(attached.report.adopted);
    detach(&registry, &forger)?;
    detach(&registry, &victim)?;
    Ok(())
}
