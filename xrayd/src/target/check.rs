//! The preflight: checks, row by row, whether a process can be traced. Changes nothing.

use std::{cmp::Reverse, collections::BTreeSet, fmt::Write as _, fs, io::ErrorKind};

use nix::unistd::geteuid;
use sled_encoders::x86_64::sled_bytes;
use xray_trace::instr_map::XrayRuntime;

use super::{
    FoundFile, Maps, MemoryGroup, Module, Objects, Outcome, Passage, PerfEvents, Stay, Target,
    ThreadState, ThreadStatus, Threads,
    counter::check_counter,
    linked,
    modules::{Found, modules_of},
    open_map_file, ring_rooms,
    sleds::{Survey, survey},
};
use crate::{
    pid::{Pid, Tid},
    refusal::{Reason, Refusal, Result},
    sys::Memory,
};

/// The kernel's name of the code that an attach leaves in a process.
const OUR_CODE: &str = "[anon:xrayd-code]";

/// The reasons why even root cannot trace.
const NOT_EVEN_ROOT: &str = "; this tracer runs as root already: it lacks CAP_SYS_PTRACE (as in a \
    container), or a security module forbids the access";

/// Most modules that are named with their memory.
const MODULES_TOLD: usize = 8;

/// Whether a process can be attached to if no module in it has sleds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sleds {
    /// The process cannot be attached to.
    #[default]
    Needed,
    /// The process can be attached to: libraries that are loaded later may have sleds.
    Awaited,
}

/// Who started a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Launch {
    /// Others have. It must have no tracer.
    ByOthers,
    /// xrayd has, and is its tracer.
    ByUs,
}

/// One row of the preflight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The refusal that a failure causes.
    pub reason: Reason,
    /// The subject of the check.
    pub subject: &'static str,
    /// The result.
    pub outcome: Outcome,
    /// The finding, in words.
    pub finding: String,
    /// The command that solves the problem; empty if there is none.
    pub remedy: String,
}

/// The findings of the preflight, with which the attach goes on.
#[derive(Debug)]
pub(crate) struct Preflight {
    /// The rows, in order. Rows after the first failure may be missing.
    pub(crate) checks: Vec<Check>,
    /// Modules with their sleds.
    pub(crate) surveyed: Vec<(Module, Survey)>,
    /// Modules that cannot be traced.
    pub(crate) refused: Vec<super::modules::RefusedModule>,
    /// The maps at that time.
    pub(crate) maps: Maps,
}

// === impl Preflight ===

impl Preflight {
    /// Returns the first failure as a refusal.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) fn verdict(&self) -> Result<()> {
        match self
            .checks
            .iter()
            .find(|check| check.outcome == Outcome::Failed)
        {
            Some(check) => Err(Refusal::new(check.reason, check.finding.clone())),
            None => Ok(()),
        }
    }

    /// Sleds that call trampolines of an xrayd.
    pub(crate) fn sleds_on(&self) -> u64 {
        let surveys = self.surveyed.iter().map(|(_, survey)| survey);
        surveys.map(Survey::sleds_on).sum()
    }

    fn add(
        &mut self,
        reason: Reason,
        subject: &'static str,
        outcome: Outcome,
        finding: impl Into<String>,
    ) {
        self.checks.push(Check {
            reason,
            subject,
            outcome,
            finding: finding.into(),
            remedy: String::new(),
        });
    }

    fn remedy(&mut self, command: impl Into<String>) {
        if let Some(check) = self.checks.last_mut() {
            check.remedy = command.into();
        }
    }
}

/// Checks a process. `sleds` states whether there must be sleds.
///
/// # Errors
/// There is no such process, or nothing about it can be read.
pub(crate) fn preflight(
    target: &Target,
    objects: &Objects,
    launch: Launch,
    sleds: Sleds,
) -> Result<Preflight> {
    let pid = target.pid();
    let tid = target.live_thread()?;
    let mut flight = Preflight {
        checks: Vec::new(),
        surveyed: Vec::new(),
        refused: Vec::new(),
        maps: Maps::default(),
    };
    flight.add(
        Reason::NoSuchProcess,
        "process",
        Outcome::Ok,
        target.command(),
    );
    let Some(memory) = check_access(&mut flight, target, tid) else {
        return Ok(flight);
    };
    flight.maps =
        Maps::read(pid, tid).map_err(|error| Refusal::from_io(pid, "read its maps", &error))?;
    let found = modules_of(pid, &flight.maps, objects);
    check_bits(&mut flight, pid, &found);
    check_sleds(&mut flight, pid, &memory, found, sleds);
    if flight.verdict().is_err() {
        return Ok(flight);
    }
    // Each thread is read once: there may be many.
    let threads = statuses(pid, tid);
    if launch == Launch::ByOthers {
        check_tracer(&mut flight, pid, &threads);
    }
    check_seccomp(&mut flight, pid, &threads);
    check_runtime(&mut flight, pid);
    check_sharing(&mut flight, pid);
    check_copying(&mut flight);
    check_rings(&mut flight, pid);
    let (outcome, finding) = check_counter();
    flight.add(Reason::Tsc, "counter", outcome, finding);
    check_detection(&mut flight);
    Ok(flight)
}

fn check_access(flight: &mut Preflight, target: &Target, tid: Tid) -> Option<Memory> {
    let pid = target.pid();
    match Memory::open(pid, tid) {
        Ok(memory) => {
            flight.add(
                Reason::Permission,
                "permission",
                Outcome::Ok,
                "xrayd can read and write the memory of the process",
            );
            Some(memory)
        }
        Err(error) => {
            let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
            let mut finding = format!(
                "process {pid} (uid {}) may not be traced: {error}",
                target.uid()
            );
            match yama.trim() {
                "" | "0" => {}
                scope => {
                    let _ = write!(finding, " (yama/ptrace_scope is {scope})");
                }
            }
            let is_root = geteuid().is_root();
            if is_root && error.kind() == ErrorKind::PermissionDenied {
                finding.push_str(NOT_EVEN_ROOT);
            }
            flight.add(Reason::Permission, "permission", Outcome::Failed, finding);
            if !is_root {
                flight.remedy(format!("sudo xrayctl record {pid}"));
            }
            None
        }
    }
}

fn check_bits(flight: &mut Preflight, pid: Pid, found: &Found) {
    if found.thirty_two_bit || is_32_bit(pid) {
        let finding = format!("process {pid} runs 32-bit code");
        flight.add(Reason::Not64Bit, "architecture", Outcome::Failed, finding);
    } else {
        flight.add(Reason::Not64Bit, "architecture", Outcome::Ok, "x86-64");
    }
}

/// True if the class byte of the running program is that of 32 bits. This works also if its maps
/// are empty.
fn is_32_bit(pid: Pid) -> bool {
    use std::io::Read;
    let mut head = [0u8; 5];
    FoundFile::program(pid)
        .and_then(|program| program.open()?.read_exact(&mut head))
        .is_ok_and(|()| head == *b"\x7fELF\x01")
}

fn check_sleds(flight: &mut Preflight, pid: Pid, memory: &Memory, found: Found, sleds: Sleds) {
    flight.refused = found.refused;
    let linked = linked(pid, &flight.maps);
    for mut module in found.modules {
        if linked.contains(&module.load) {
            module.stay = Stay::Lasting;
        }
        match survey(memory, &flight.maps, &module) {
            Ok(survey) => flight.surveyed.push((module, survey)),
            Err(error) => flight.refused.push(super::modules::RefusedModule {
                path: module.path.clone(),
                load: module.load,
                refusal: Refusal::from_io(
                    pid,
                    &format!("read the text of {}", module.path),
                    &error,
                ),
            }),
        }
    }
    let modules = flight.surveyed.iter().map(|(module, _)| module);
    let functions: usize = modules.map(|module| module.object.functions().len()).sum();
    let surveys = flight.surveyed.iter().map(|(_, survey)| survey);
    let sites: usize = surveys.clone().map(|survey| survey.sites.len()).sum();
    let skipped: u64 = surveys
        .clone()
        .flat_map(|survey| survey.skipped.values())
        .sum();
    let runtime: u64 = surveys.map(|survey| survey.runtime).sum();
    if flight.surveyed.is_empty() && sleds == Sleds::Awaited {
        let finding = "none yet: xrayd waits for libraries that are loaded later";
        return flight.add(Reason::NoSleds, "sleds", Outcome::Warning, finding);
    }
    if flight.surveyed.is_empty() {
        let finding = match flight.refused.first() {
            Some(refused) => format!("process {pid}: {}", refused.refusal),
            None => format!("process {pid} has no module with an xray_instr_map section"),
        };
        flight.add(Reason::NoSleds, "sleds", Outcome::Failed, finding);
        flight.remedy("clang -fxray-instrument … | rustc -Z instrument-xray …");
        return;
    }
    let modules = flight.surveyed.len();
    let finding = format!(
        "{functions} functions with {sites} usable sleds in {modules} module(s), {skipped} sleds \
         skipped"
    );
    let outcome = if skipped > 0 || !flight.refused.is_empty() {
        Outcome::Warning
    } else {
        Outcome::Ok
    };
    flight.add(Reason::NoSleds, "sleds", outcome, finding);
    let (outcome, finding) = match runtime {
        0 => (Outcome::Ok, "no".to_owned()),
        _ => (
            Outcome::Failed,
            format!(
                "process {pid}: LLVM's XRay runtime in the process has patched {runtime} sleds"
            ),
        ),
    };
    let subject = "patched by others";
    flight.add(Reason::AlreadyPatched, subject, outcome, finding);
}

/// The status of all threads, `live` first.
fn statuses(pid: Pid, live: Tid) -> Vec<(Tid, ThreadStatus)> {
    let others = Threads::of(pid).into_iter().filter(|&tid| tid != live);
    std::iter::once(live)
        .chain(others)
        .filter_map(|tid| Some((tid, ThreadStatus::read(pid, tid)?)))
        .collect()
}

fn check_tracer(flight: &mut Preflight, pid: Pid, threads: &[(Tid, ThreadStatus)]) {
    match threads.iter().find_map(|(_, status)| status.tracer) {
        Some(tracer) => {
            let name = Pid::try_from(tracer)
                .map(super::identity::command_of)
                .unwrap_or_default();
            let finding = format!("process {pid} is traced by process {tracer} ({name})");
            flight.add(Reason::ForeignTracer, "tracer", Outcome::Failed, finding);
            flight.remedy(format!("kill {tracer}"));
        }
        None => flight.add(Reason::ForeignTracer, "tracer", Outcome::Ok, "none"),
    }
}

/// The tracer of any thread of the process.
pub(crate) fn tracer_of(pid: Pid, live: Tid) -> Option<u32> {
    let others = Threads::of(pid);
    std::iter::once(live)
        .chain(others)
        .find_map(|tid| ThreadStatus::read(pid, tid)?.tracer)
}

fn check_seccomp(flight: &mut Preflight, pid: Pid, threads: &[(Tid, ThreadStatus)]) {
    let living: Vec<&(Tid, ThreadStatus)> = threads
        .iter()
        .filter(|(_, status)| status.state != ThreadState::Dead)
        .collect();
    let strict = living.iter().find(|(_, status)| status.seccomp == Some(1));
    if let Some((tid, _)) = strict {
        let finding = format!("process {pid}: thread {tid} is in strict seccomp mode");
        flight.add(Reason::SeccompStrict, "seccomp", Outcome::Failed, finding);
        return;
    }
    let filtered: Vec<_> = living
        .iter()
        .filter(|(_, status)| status.seccomp == Some(2))
        .collect();
    let Some((tid, status)) = filtered.first() else {
        return flight.add(Reason::SeccompStrict, "seccomp", Outcome::Ok, "off");
    };
    let (outcome, finding, remedy) = if filtered.len() < living.len() {
        let finding = format!(
            "{} of {} threads are under a filter; xrayd borrows one of the others",
            filtered.len(),
            living.len()
        );
        (Outcome::Ok, finding, String::new())
    } else {
        match Passage::of(pid, *tid, status) {
            Passage::Closed(obstacle) => {
                let finding = format!(
                    "process {pid}: every thread is under a seccomp filter, and xrayd cannot \
                     suspend it: {obstacle}"
                );
                // Code that an earlier attach left there may be enough, without a thread.
                let outcome = match flight.maps.iter().any(|entry| entry.name == OUR_CODE) {
                    true => Outcome::Warning,
                    false => Outcome::Failed,
                };
                (outcome, finding, obstacle.remedy(pid))
            }
            Passage::Shared => {
                let finding = "every thread is under the same filter as this tracer";
                (Outcome::Ok, finding.to_owned(), String::new())
            }
            Passage::Suspended | Passage::Unfiltered => {
                let finding = "every thread is under a filter, which xrayd suspends for one thread";
                (Outcome::Ok, finding.to_owned(), String::new())
            }
        }
    };
    flight.add(Reason::SeccompFilter, "seccomp", outcome, finding);
    flight.remedy(remedy);
}

fn check_runtime(flight: &mut Preflight, pid: Pid) {
    let linked = flight
        .surveyed
        .iter()
        .any(|(module, _)| module.object.runtime() == XrayRuntime::Defined);
    if linked {
        let finding = format!(
            "process {pid} contains LLVM's XRay runtime; the runtime must not patch sleds while \
             xrayd traces"
        );
        flight.add(Reason::AlreadyPatched, "runtime", Outcome::Warning, finding);
    }
}

fn check_sharing(flight: &mut Preflight, pid: Pid) {
    let mut modules = flight.surveyed.iter();
    let reachable = modules
        .next()
        .is_some_and(|(module, _)| open_map_file(pid, &module.entry.range).is_ok());
    let (outcome, finding) = if reachable && Threads::can_open_map_files(pid) {
        let finding = "through a sealed memfd, because the process has the right to truncate \
            other shared memory";
        (Outcome::Ok, finding)
    } else if reachable {
        (Outcome::Ok, "through /proc/PID/map_files")
    } else {
        (
            Outcome::Warning,
            "through a memfd: this tracer cannot open a module through /proc/PID/map_files, which \
             needs CAP_CHECKPOINT_RESTORE",
        )
    };
    flight.add(Reason::Io, "shared memory", outcome, finding);
}

fn check_copying(flight: &mut Preflight) {
    let copied = flight.surveyed.iter().map(|(module, survey)| {
        let sites = survey.sites.iter();
        let pages: BTreeSet<u64> = sites
            .flat_map(|site| {
                let last = site
                    .address
                    .saturating_add(sled_bytes(site.kind) as u64 - 1);
                [site.address >> 12, last >> 12]
            })
            .collect();
        (pages.len() * 4, module.path.as_str())
    });
    let mut copied: Vec<(usize, &str)> = copied.collect();
    copied.sort_by_key(|&(kib, _)| Reverse(kib));
    let total: usize = copied.iter().map(|(kib, _)| kib).sum();
    let mut finding = format!("{total} KiB of text become private if all functions are on");
    let largest: Vec<String> = copied
        .iter()
        .take(MODULES_TOLD)
        .map(|(kib, path)| format!("{kib} KiB of {path}"))
        .collect();
    if copied.len() > 1 {
        let _ = write!(finding, ": {}", largest.join(", "));
    }
    if copied.len() > MODULES_TOLD {
        let _ = write!(finding, " and {} more", copied.len() - MODULES_TOLD);
    }
    flight.add(Reason::NoMemory, "memory", Outcome::Ok, finding);
}

fn check_rings(flight: &mut Preflight, pid: Pid) {
    let rooms = ring_rooms(MemoryGroup::of(pid).as_ref(), |_| 0, 0);
    let finding = match rooms.iter().min_by_key(|room| room.bytes) {
        Some(room) => format!(
            "at most {} KiB: {}, and rings may take half of that",
            room.bytes >> 10,
            room.limit
        ),
        None => "no limit on the memory of the rings".to_owned(),
    };
    flight.add(Reason::NoMemory, "rings", Outcome::Ok, finding);
}

fn check_detection(flight: &mut Preflight) {
    let finding = match PerfEvents::probe() {
        Ok(()) => {
            "libraries and followed processes are detected at once, by perf events".to_owned()
        }
        Err(why) => {
            format!("libraries and followed processes are detected by looking every 4 ms: {why}")
        }
    };
    flight.add(Reason::Io, "detection", Outcome::Ok, finding);
}
