//! Lists all processes that have sleds.

use std::{fs, sync::Arc};

use super::{Objects, Target, Threads, check, modules::modules_of, walk::walk};
use crate::{
    pid::Pid,
    refusal::{Reason, Refusal, Result},
};

/// Whether a process can be attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessState {
    /// The process can be attached to.
    Ready,
    /// The process can be attached to. A daemon that is gone has left sleds on in it.
    LeftOn,
    /// The process can be attached to. It was forked from a traced process, whose functions are on
    /// in it, too. It records nothing.
    Inherited,
    /// The process is attached.
    Traced,
    /// The process cannot be attached to.
    Refused(Refusal),
}

/// A process with sleds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSummary {
    /// Its id.
    pub pid: Pid,
    /// Its effective user.
    pub uid: u32,
    /// Field 22 of `/proc/<pid>/stat`.
    pub start_time: u64,
    /// systemd unit or container, empty where there is none.
    pub unit: String,
    /// The command line.
    pub command: String,
    /// Modules with sleds.
    pub modules: u32,
    /// Functions with sleds.
    pub functions: u32,
    /// Whether it can be attached to.
    pub state: ProcessState,
    /// The first process of its group, if it was followed.
    pub root: Option<Pid>,
}

/// Lists the processes for which `may_see` returns true, by pid. `may_see` is called before
/// anything else of a process is read, and again afterwards. For a process with a session, `known`
/// returns its state and the first process of its group. `with_sleds_on` returns the state of a
/// process without a session that has sleds on. Processes that cannot be read are listed
/// only if their file shows sleds. Processes whose files do not answer are left out.
///
/// # Errors
/// No thread can be made, or `/proc` cannot be read.
pub(crate) fn list(
    objects: Arc<Objects>,
    may_see: impl Fn(&Target) -> bool + Send + Sync + 'static,
    known: impl Fn(Pid) -> Option<(ProcessState, Option<Pid>)> + Send + Sync + 'static,
    with_sleds_on: impl Fn(&Target) -> ProcessState + Send + Sync + 'static,
) -> Result<Vec<ProcessSummary>> {
    let failed = |what| move |error| Refusal::from_io(Pid::this(), what, &error);
    let entries = fs::read_dir("/proc").map_err(failed("list processes"))?;
    let mut pids: Vec<Pid> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| Pid::try_from(pid).ok())
        .filter(|pid| pid.as_u32() != std::process::id())
        .collect();
    pids.sort_unstable();
    let look = move |pid| summary(pid, &objects, &may_see, &known, &with_sleds_on);
    walk(pids, look).map_err(failed("start a thread that lists processes"))
}

fn summary(
    pid: Pid,
    objects: &Objects,
    may_see: &impl Fn(&Target) -> bool,
    known: &impl Fn(Pid) -> Option<(ProcessState, Option<Pid>)>,
    with_sleds_on: &impl Fn(&Target) -> ProcessState,
) -> Option<ProcessSummary> {
    let target = Target::open(pid).ok().filter(may_see)?;
    // This does not wait: a user may have thousands of processes that are about to end.
    let tid = Threads::live(pid)?;
    let maps = super::Maps::read(pid, tid).ok()?;
    let found = modules_of(pid, &maps, objects);
    if found.modules.is_empty() {
        return None;
    }
    let functions: usize = found
        .modules
        .iter()
        .map(|module| module.object.functions().len())
        .sum();
    let modules = found.modules.len();
    let (state, root) = known(pid).unzip();
    let state = match state {
        Some(state) => state,
        None => match check::preflight(
            &target,
            objects,
            check::Launch::ByOthers,
            check::Sleds::Needed,
        )
        .and_then(|flight| flight.verdict().map(|()| flight.sleds_on()))
        {
            Ok(0) => ProcessState::Ready,
            Ok(_) => with_sleds_on(&target),
            Err(refusal) if refusal.reason == Reason::TargetExited => return None,
            Err(refusal) => ProcessState::Refused(refusal),
        },
    };
    // The process may have changed to another user.
    may_see(&target).then(|| ProcessSummary {
        pid,
        uid: target.uid(),
        start_time: target.start_time(),
        unit: cgroup_of(pid)
            .and_then(|path| Some(unit_in(&path)?.to_owned()))
            .unwrap_or_default(),
        command: target.command(),
        modules: u32::try_from(modules).unwrap_or(u32::MAX),
        functions: u32::try_from(functions).unwrap_or(u32::MAX),
        state,
        root: root.flatten(),
    })
}

/// The path of a process's control group, the one that systemd made. `None` if the process is gone.
pub(crate) fn cgroup_of(pid: Pid) -> Option<String> {
    let cgroups = fs::read(format!("/proc/{pid}/cgroup")).ok()?;
    let cgroups = String::from_utf8_lossy(&cgroups);
    let mut paths = cgroups.lines().filter_map(|line| {
        line.strip_prefix("0::")
            .or_else(|| line.split_once(":name=systemd:").map(|(_, path)| path))
    });
    paths.next().map(str::to_owned)
}

/// The systemd unit or the container in a control group's path.
pub(crate) fn unit_in(path: &str) -> Option<&str> {
    path.split('/').rev().find(|part| {
        [".service", ".scope", ".slice"]
            .iter()
            .any(|suffix| part.ends_with(suffix))
            || ["docker-", "libpod-", "crio-", "lxc"]
                .iter()
                .any(|prefix| part.starts_with(prefix))
            || (part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_containers_are_found_in_cgroup_paths() {
        let rows = [
            ("/system.slice/nginx.service", Some("nginx.service")),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/foo.scope/x",
                Some("foo.scope"),
            ),
            (
                "/docker/0123456789012345678901234567890123456789012345678901234567890123",
                Some("0123456789012345678901234567890123456789012345678901234567890123"),
            ),
            ("/", None),
            ("", None),
        ];
        for (path, unit) in rows {
            assert_eq!(unit_in(path), unit, "{path}");
        }
    }
}
