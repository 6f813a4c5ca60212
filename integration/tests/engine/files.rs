//! Files that a target has mapped, and that a tracer should neither wait for nor pay for
//! (threat-model.md, 3).

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use integration::{DEADLINE, Fixture, SilentMount, Target, copy_into, wait_until};
use procfs::process::Process;
use xrayd::{
    Reason, Refusal,
    process::AttachOptions,
    types::{CallFilter, Filter, Mode, Run, Switch},
};

use crate::{
    growth::Tables,
    support::{
        attach, attach_with, detach, everything, pid_of, registry, switch, text_is_as_compiled,
        write_snapshot,
    },
    tracer::Tracer,
};

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

/// Programs of another user. Other tests list root's processes, and would hang with them.
fn as_another_user(count: usize) -> Result<Vec<Target>> {
    const NOBODY: u32 = 65534;
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
    let program = copy_into(Fixture::Mappings, dir.path())?;
    let spawn = |_| {
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        Target::spawn_command(command)
    };
    (0..count).map(spawn).collect()
}

/// Ends with an error, in the place of never, where something waits for a FIFO's writer.
fn in_time(what: &str, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let (done, was_done) = sync_channel(1);
    thread::spawn(move || done.send(work()));
    was_done
        .recv_timeout(DEADLINE)
        .with_context(|| format!("{what}: it hangs"))?
}

/// A mapping goes between the look at the maps and the open, and a FIFO has its file's name (P65).
#[test]
fn a_fifo_in_the_place_of_a_mapped_file_keeps_nothing_waiting() -> Result<()> {
    let mut target = Target::spawn(Fixture::Mappings, [""; 0])?;
    let dir = tempfile::tempdir()?;
    copy_into(Fixture::Plain, dir.path())?;
    fs::rename(dir.path().join("plain"), dir.path().join("aside"))?;
    target.ask(&format!("flip {}", text(dir.path())?), "flipping")?;
    let pid = pid_of(&target)?;
    in_time("attach, ps and doctor", move || {
        let registry = registry();
        let end = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < end {
            let attached = attach(&registry, &target)?;
            switch(&attached.session, Switch::On)?;
            target.ask("call", "called")?;
            detach(&registry, &target)?;
            for _ in 0..20 {
                registry.preflight(pid)?;
            }
            let mut listed = registry.list()?;
            listed.retain(|process| process.pid == pid);
            ensure!(listed.len() == 1, "{listed:?}");
        }
        let still = target.ask("still", "still ")?;
        let flips: u64 = still.trim_start_matches("still ").parse()?;
        ensure!(flips > 100, "{flips} flips are too few to meet one");
        Ok(())
    })
}

/// A file system that does not answer delays what needs its file, and nothing else.
#[test]
fn a_file_that_is_never_read_delays_its_own_process_alone() -> Result<()> {
    let Some(mount) = SilentMount::new("a_file_that_is_never_read_delays_its_own_process_alone")?
    else {
        return Ok(());
    };
    let mut hung = Target::spawn(Fixture::Mappings, [""; 0])?;
    hung.ask(&format!("map {}", text(&mount.file())?), "mapped")?;
    let registry = registry();
    let (looker, pid) = (registry.clone(), pid_of(&hung)?);
    let looking = thread::spawn(move || looker.preflight(pid).map(|_| ()));
    wait_until(DEADLINE, "the file is read", || {
        Ok(mount.was_read().then_some(()))
    })?;

    let mut other = Target::spawn(Fixture::Mappings, [""; 0])?;
    let others = pid_of(&other)?;
    let listed = registry.clone();
    let other = {
        let registry = registry.clone();
        let (back, given_back) = sync_channel(1);
        in_time("another process", move || {
            let attached = attach(&registry, &other)?;
            switch(&attached.session, Switch::On)?;
            other.ask("call", "called")?;
            back.send(other).ok().context("the test has ended")
        })?;
        given_back.recv()?
    };
    // The list goes on without it, also if two lists meet it at the same time.
    let list = move || {
        let mut rows = listed.list()?;
        rows.retain(|process| process.pid == pid || process.pid == others);
        let pids: Vec<_> = rows.iter().map(|row| row.pid).collect();
        ensure!(pids == [others], "{pids:?}");
        Ok(())
    };
    in_time("ps", move || {
        let at_the_same_time = thread::spawn(list.clone());
        list()?;
        at_the_same_time.join().ok().context("ps panicked")?
    })?;
    detach(&registry, &other)?;
    ensure!(!looking.is_finished(), "the file was read after all");
    drop(mount);
    let looked = looking.join().ok().context("the look panicked")?;
    looked.context("an unreadable file is no reason to refuse its process")
}

/// Sixteen detaches run at the same time. Here more detaches than that hang in the memory of their
/// processes. The detach of another process runs all the same. The hung ones end once the memory
/// answers.
#[test]
fn processes_whose_memory_hangs_keep_no_other_from_its_detach() -> Result<()> {
    const HUNG: usize = 20;
    let Some(mount) =
        SilentMount::new("processes_whose_memory_hangs_keep_no_other_from_its_detach")?
    else {
        return Ok(());
    };
    let registry = registry();
    let mut hung = Vec::new();
    for (number, mut target) in as_another_user(HUNG)?.into_iter().enumerate() {
        let session = attach(&registry, &target)?.session;
        // A file each: of one file, one thread hangs, and the others see that.
        target.ask(
            &format!("cover {}", text(&mount.numbered(number))?),
            "covered",
        )?;
        let switching = thread::spawn(move || session.toggle(&everything(), Switch::On, Run::Real));
        hung.push((target, switching));
    }
    // Their numbers are higher, so they come last.
    let mut other = Target::spawn(Fixture::Mappings, [""; 0])?;
    let session = attach(&registry, &other)?.session;
    switch(&session, Switch::On)?;
    other.ask("call", "called")?;
    let is_off = || text_is_as_compiled(&other, other.program(), other.program());
    ensure!(is_off().is_err());
    ensure!(mount.was_read());

    let all = registry.clone();
    let deadline = Instant::now() + DEADLINE;
    let detaching = thread::spawn(move || all.detach_all(deadline));
    wait_until(DEADLINE, "the other one is let go", || Ok(is_off().ok()))?;
    let reports = detaching.join().ok().context("the detach panicked")?;
    ensure!(reports.len() == HUNG + 1, "{reports:?}");
    let is_busy = |refusal: &Refusal| refusal.reason == Reason::Busy;
    let busy = reports
        .iter()
        .filter(|(_, report)| report.as_ref().is_err_and(is_busy));
    ensure!(busy.count() == HUNG, "{reports:?}");
    other.ask("call", "called")?;

    let mut targets = Vec::new();
    for (target, switching) in hung {
        let switched = switching.join().ok().context("the switch panicked")?;
        ensure!(switched.as_ref().is_err_and(is_busy), "{switched:?}");
        targets.push(target);
    }
    drop(mount);
    for target in &mut targets {
        let pid = pid_of(target)?;
        wait_until(DEADLINE, "it is let go", || {
            let detached = registry.detach(pid).err().map(|refusal| refusal.reason);
            Ok((detached == Some(Reason::NotAttached)).then_some(()))
        })?;
        target.ask("call", "called")?;
    }
    Ok(())
}

/// The collector of one process hangs in the process's slot table. Requests to it end with an
/// error. Other processes are served meanwhile.
#[test]
fn a_process_whose_slots_hang_holds_up_itself_alone() -> Result<()> {
    let Some(mount) = SilentMount::new("a_process_whose_slots_hang_holds_up_itself_alone")? else {
        return Ok(());
    };
    let registry = registry();
    let mut target = as_another_user(1)?.remove(0);
    let session = attach_with(
        &registry,
        &target,
        AttachOptions {
            mode: Mode::Flight,
            ..AttachOptions::default()
        },
    )?
    .session;
    let slots = Tables::of(&target)?.slots();
    let file = mount.file();
    target.ask(&format!("cover {} {slots:x}", text(&file)?), "covered")?;
    wait_until(DEADLINE, "the slots are read", || {
        Ok(mount.was_read().then_some(()))
    })?;

    let group = registry.group_of(&session).context("no group")?;
    let (filtered, status) = (Arc::clone(&session), Arc::clone(&session));
    let longest = Filter {
        calls: CallFilter {
            shortest: Duration::from_secs(1),
            ..CallFilter::default()
        },
        ..Filter::default()
    };
    let filtering = thread::spawn(move || filtered.update(longest.clone()).map(drop));
    let subscribing = thread::spawn(move || drop(group.subscribe(None, 0)));
    let shooting = thread::spawn(move || write_snapshot(&session, &mut io::sink()));
    // While they wait.
    in_time("status", move || {
        for _ in 0..10 {
            let _ = (status.status(), status.settings());
        }
        Ok(())
    })?;
    let other = Target::spawn(Fixture::Mappings, [""; 0])?;
    let others = registry.clone();
    in_time("another process", move || {
        attach(&others, &other)?;
        detach(&others, &other)?;
        Ok(())
    })?;

    let filtered = filtering.join().ok().context("the filter panicked")?;
    let reason = filtered.err().map(|refusal| refusal.reason);
    ensure!(reason == Some(Reason::Busy), "{reason:?}");
    subscribing.join().ok().context("the stream panicked")?;
    let shot = shooting.join().ok().context("the snapshot panicked")?;
    let shot = shot
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(
        shot.contains("the trace lacks 1 of the processes"),
        "{shot}"
    );
    drop(mount);
    target.ask("call", "called")?;
    Ok(())
}

/// An attach that hangs in a file is given up. A second request starts no second thread that hangs.
/// Once the file answers, the first attach is undone, and another one succeeds.
#[test]
fn an_attach_that_hangs_is_given_up() -> Result<()> {
    let Some(mount) = SilentMount::new("an_attach_that_hangs_is_given_up")? else {
        return Ok(());
    };
    let registry = registry();
    let mut target = as_another_user(1)?.remove(0);
    target.ask(&format!("map {}", text(&mount.file())?), "mapped")?;
    let pid = pid_of(&target)?;
    for _ in 0..2 {
        let registry = registry.clone();
        in_time("the attach", move || {
            let attached = registry.attach(pid, AttachOptions::default());
            let refusal = attached.err().context("the file was read after all")?;
            ensure!(refusal.reason == Reason::Busy, "{refusal:?}");
            Ok(())
        })?;
    }
    ensure!(mount.was_read());
    let control = format!("attach-{pid}\n");
    let names = fs::read_dir("/proc/self/task")?
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    ensure!(names.filter(|name| *name == control).count() == 1);
    drop(mount);
    wait_until(DEADLINE, "it can be attached to", || {
        Ok(attach(&registry, &target).ok())
    })?;
    target.ask("call", "called")?;
    detach(&registry, &target)?;
    Ok(())
}

/// A detach that hangs ends at its deadline, with an error.
#[test]
fn a_detach_that_hangs_is_given_up() -> Result<()> {
    let Some(mount) = SilentMount::new("a_detach_that_hangs_is_given_up")? else {
        return Ok(());
    };
    let registry = registry();
    let mut target = as_another_user(1)?.remove(0);
    let session = attach(&registry, &target)?.session;
    target.ask(&format!("cover {}", text(&mount.file())?), "covered")?;
    let switching = thread::spawn(move || session.toggle(&everything(), Switch::On, Run::Real));
    wait_until(DEADLINE, "the page is read", || {
        Ok(mount.was_read().then_some(()))
    })?;
    let reports = registry.detach_all(Instant::now() + Duration::from_millis(100));
    let [(pid, Err(refusal))] = &reports[..] else {
        bail!("{reports:?}");
    };
    ensure!(*pid == pid_of(&target)? && refusal.reason == Reason::Busy);
    ensure!(refusal.message.contains("may not answer"), "{refusal}");
    ensure!(!switching.is_finished());
    drop(mount);
    let switched = switching.join().ok().context("the switch panicked")?;
    drop(switched);
    Ok(())
}

/// An ELF program of these sections, each at the end of the last one or where it is said.
struct Sections {
    bytes: Vec<u8>,
    /// Name, type, link, offset, size.
    headers: Vec<(&'static str, u32, u32, u64, u64)>,
}

// === impl Sections ===

impl Sections {
    const ADDRESS: u64 = 0x40_0000;

    fn new() -> Sections {
        Sections {
            bytes: vec![0; 64 + 56],
            headers: Vec::new(),
        }
    }

    fn add(&mut self, name: &'static str, kind: u32, link: u32, data: &[u8]) {
        let at = self.bytes.len() as u64;
        self.headers.push((name, kind, link, at, data.len() as u64));
        self.bytes.extend(data);
    }

    /// Writes it to a file of this length.
    fn write(mut self, path: &Path, length: u64) -> Result<()> {
        let mut names = vec![0];
        let mut offsets = Vec::new();
        for (name, ..) in &self.headers {
            offsets.push(u32::try_from(names.len())?);
            names.extend(name.bytes().chain([0]));
        }
        offsets.push(0);
        self.add(".shstrtab", 3, 0, &names);
        let table = self.bytes.len() as u64;
        self.bytes.extend([0; 64]);
        for ((_, kind, link, at, size), name) in self.headers.iter().zip(offsets) {
            let mut header = Vec::new();
            header.extend(name.to_le_bytes());
            header.extend(kind.to_le_bytes());
            for word in [2, Self::ADDRESS + at, *at, *size, u64::from(*link)] {
                header.extend(word.to_le_bytes());
            }
            header.resize(64, 0);
            self.bytes.extend(header);
        }
        let count = u16::try_from(self.headers.len() + 1)?;
        let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
        for word in [Self::ADDRESS, 64, table] {
            head.extend(word.to_le_bytes());
        }
        head.extend([0; 4]);
        for half in [64, 56, 1, 64, count, count - 1] {
            head.extend(half.to_le_bytes());
        }
        head.extend([1, 0, 0, 0, 5, 0, 0, 0]);
        for word in [0, Self::ADDRESS, Self::ADDRESS, length, length, 4096] {
            head.extend(word.to_le_bytes());
        }
        self.bytes[..head.len()].copy_from_slice(&head);
        let file = File::create(path)?;
        file.write_all_at(&self.bytes, 0)?;
        Ok(file.set_len(length)?)
    }
}

/// A map of 256 MiB without a single bit.
fn map_of_zeros(path: &Path) -> Result<()> {
    const SIZE: u64 = 256 << 20;
    let mut sections = Sections::new();
    sections
        .headers
        .push(("xray_instr_map", 1, 0, 1 << 20, SIZE));
    sections.write(path, SIZE + (1 << 20))
}

/// 10,000 functions that share one name of 60,000 bytes, in a file of 64 GiB.
fn one_name_in_a_long_file(path: &Path) -> Result<()> {
    const FUNCTIONS: u64 = 10_000;
    let (mut map, mut symbols) = (Vec::new(), vec![0; 24]);
    for function in 0..FUNCTIONS {
        let address = Sections::ADDRESS + function * 16;
        for word in [address, address, 1 << 8, 0] {
            map.extend(word.to_le_bytes());
        }
        symbols.extend([1, 0, 0, 0, 0x12, 0, 1, 0]);
        for word in [address, 16] {
            symbols.extend(word.to_le_bytes());
        }
    }
    let mut strings = vec![b'a'; 60_000];
    strings[0] = 0;
    strings.push(0);
    let mut sections = Sections::new();
    sections.add("xray_instr_map", 1, 0, &map);
    sections.add(".symtab", 2, 3, &symbols);
    sections.add(".strtab", 3, 0, &strings);
    sections.write(path, 64 << 30)
}

/// What a daemon spends on a file is bounded by what the file holds, not by how long it says it is.
#[test]
fn sparse_files_cost_a_tracer_no_more_than_they_hold() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let files = ["zeros", "name"].map(|name| dir.path().join(name));
    map_of_zeros(&files[0])?;
    one_name_in_a_long_file(&files[1])?;
    let mut target = Target::spawn(Fixture::Mappings, [""; 0])?;
    for file in &files {
        target.ask(&format!("map {}", text(file)?), "mapped")?;
    }
    let mut tracer = Tracer::spawn()?;
    tracer.ask(&format!("attach {}", target.pid()))?;
    tracer.ask("detach")?;
    let status = Process::new(tracer.pid())?.status()?;
    let peak = status.vmhwm.context("no VmHWM")?;
    ensure!(peak < 96 << 10, "{peak} KiB at most");
    Ok(())
}
