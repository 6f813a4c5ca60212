//! The daemon against the kernel: the test asks both about each pair of a caller and a target. The
//! daemon refuses every caller that the kernel refuses. If only the daemon refuses, a row of
//! [`CAUTIOUS`] has the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target, cannot_run, copy_into};
use serde_json::Value;

use crate::scene::{Cli, NOBODY, Ran, Running, Scene, rows};

/// A second user. Most rows are about 65534, which is also the number of users without one in a
/// namespace.
const OTHER: u32 = 1;
/// Exit code of `credentials.c` if the kernel lacks a feature for a step.
const LACKING: i32 = 3;

/// Steps of `credentials.c` that make a caller. The caller then executes `xrayctl`. `@` is the
/// fixture, `_` a blank within a word.
const CALLERS: &[(&str, &str)] = &[
    ("root", ""),
    ("root without CAP_SYS_PTRACE", "bound 80000"),
    ("root without capabilities", "bound ffffffffffffffff"),
    ("root in a user namespace", "user-namespace 0_0_100000"),
    ("root in a pid namespace", "pid-namespace"),
    ("root under a filter", "seccomp"),
    ("root that gave up new privileges", "no-new-privs"),
    ("user", "gid 65534 65534 65534 uid 65534 65534 65534"),
    ("other user", "gid 1 1 1 uid 1 1 1"),
    (
        "other user of the same group",
        "gid 65534 65534 65534 uid 1 1 1",
    ),
    ("user of another group", "gid 1 1 1 uid 65534 65534 65534"),
    (
        "effective user only",
        "gid 65534 65534 65534 uid 1 65534 65534",
    ),
    ("real user only", "gid 65534 65534 65534 uid 65534 1 1"),
    (
        "effective group only",
        "gid 1 65534 65534 uid 65534 65534 65534",
    ),
    (
        "user with CAP_NET_BIND_SERVICE",
        "gid 65534 65534 65534 keep uid 65534 65534 65534 caps 400 ambient 10",
    ),
    (
        "user with CAP_SYS_PTRACE",
        "gid 65534 65534 65534 keep uid 65534 65534 65534 caps 80000 ambient 19",
    ),
    (
        "user that gave up new privileges",
        "gid 65534 65534 65534 uid 65534 65534 65534 no-new-privs",
    ),
    (
        "user under Landlock",
        "gid 65534 65534 65534 uid 65534 65534 65534 no-new-privs landlock",
    ),
    (
        "user under a filter",
        "seccomp gid 65534 65534 65534 uid 65534 65534 65534",
    ),
    (
        "user in a namespace of its own",
        "gid 65534 65534 65534 uid 65534 65534 65534 -- @ user-namespace 0_65534_1",
    ),
    (
        "user in one without numbers",
        "gid 65534 65534 65534 uid 65534 65534 65534 -- @ user-namespace -",
    ),
    (
        "other user without a number",
        "gid 1 1 1 uid 1 1 1 -- @ user-namespace -",
    ),
    (
        "user in a pid namespace",
        "pid-namespace gid 65534 65534 65534 uid 65534 65534 65534",
    ),
];

/// Steps that make a target. Only root can read `@secret`. `@of-user` and `@of-other` are
/// set-user-id programs.
const TARGETS: &[(&str, &str)] = &[
    ("root's", ""),
    ("root's without capabilities", "bound ffffffffffffffff -- @"),
    ("user's", "gid 65534 65534 65534 uid 65534 65534 65534 -- @"),
    ("other user's", "gid 1 1 1 uid 1 1 1 -- @"),
    ("of another group", "gid 1 1 1 uid 65534 65534 65534 -- @"),
    (
        "real user",
        "gid 65534 65534 65534 uid 1 65534 65534 dumpable 1",
    ),
    (
        "effective user",
        "gid 65534 65534 65534 uid 65534 1 65534 dumpable 1",
    ),
    (
        "saved user",
        "gid 65534 65534 65534 uid 65534 65534 1 dumpable 1",
    ),
    (
        "effective group",
        "gid 65534 1 65534 uid 65534 65534 65534 dumpable 1",
    ),
    (
        "saved group",
        "gid 65534 65534 1 uid 65534 65534 65534 dumpable 1",
    ),
    (
        "file system user",
        "gid 65534 65534 65534 keep uid 65534 65534 65534 caps 80 fsuid 1 caps 0 dumpable 1",
    ),
    (
        "ambient capability",
        "gid 65534 65534 65534 keep uid 65534 65534 65534 caps 400 ambient 10 -- @",
    ),
    (
        "permitted capability",
        "gid 65534 65534 65534 keep uid 65534 65534 65534 caps 400 dumpable 1",
    ),
    (
        "capability of one thread",
        "gid 65534 65534 65534 keep uid 65534 65534 65534 caps 400 thread 0 dumpable 1",
    ),
    (
        "undumpable",
        "gid 65534 65534 65534 uid 65534 65534 65534 -- @ dumpable 0",
    ),
    (
        "unreadable",
        "gid 65534 65534 65534 uid 65534 65534 65534 -- @secret",
    ),
    (
        "set-user-id",
        "gid 65534 65534 65534 uid 65534 65534 65534 -- @of-other",
    ),
    (
        "set-user-id of the user",
        "gid 65534 65534 65534 uid 1 1 1 -- @of-user",
    ),
    (
        "set-user-id without new privileges",
        "gid 65534 65534 65534 uid 65534 65534 65534 no-new-privs -- @of-other",
    ),
    (
        "under a filter",
        "seccomp gid 65534 65534 65534 uid 65534 65534 65534 -- @",
    ),
    (
        "in a namespace of its own",
        "gid 65534 65534 65534 uid 65534 65534 65534 -- @ user-namespace 0_65534_1",
    ),
    (
        "in one without numbers",
        "gid 65534 65534 65534 uid 65534 65534 65534 -- @ user-namespace -",
    ),
    (
        "two namespaces deep",
        "gid 65534 65534 65534 uid 65534 65534 65534 -- @ user-namespace 0_65534_1 user-namespace -",
    ),
    (
        "undumpable in a namespace",
        "gid 65534 65534 65534 uid 65534 65534 65534 -- @ user-namespace 0_65534_1 dumpable 0",
    ),
    (
        "in a namespace of root's",
        "user-namespace 0_0_100000 gid 65534 65534 65534 uid 65534 65534 65534 -- @",
    ),
];

/// Pairs that only the daemon refuses: the caller, the target or `*` for all, and the reason.
const CAUTIOUS: &[(&str, &str, &str)] = &[
    (
        "root without CAP_SYS_PTRACE",
        "root's without capabilities",
        "the owner of its memory is root, be it dumpable or not",
    ),
    (
        "root without CAP_SYS_PTRACE",
        "in a namespace of root's",
        "sessions belong to users: other users' processes are for root with the capability alone",
    ),
    (
        "root without capabilities",
        "root's without capabilities",
        "the owner of its memory is root, be it dumpable or not",
    ),
    (
        "root without capabilities",
        "in a namespace of root's",
        "sessions belong to users: other users' processes are for root with the capability alone",
    ),
    (
        "effective user only",
        "*",
        "the socket names the effective user, and the kernel's rule the real one: both have to be the same",
    ),
    (
        "effective group only",
        "*",
        "the socket names the effective group, and the kernel's rule the real one: both have to be the same",
    ),
    (
        "real user only",
        "*",
        "the socket names the effective user, and the kernel's rule the real one: both have to be the same",
    ),
    (
        "user with CAP_NET_BIND_SERVICE",
        "*",
        "capabilities are read after the connect, so only root's count",
    ),
    (
        "user with CAP_SYS_PTRACE",
        "*",
        "capabilities are read after the connect, so only root's count",
    ),
    (
        "user that gave up new privileges",
        "*",
        "it may be under Landlock, whose domains cannot be seen",
    ),
];

/// The fixture and copies of it, in a place where every user may execute them.
struct Programs {
    dir: PathBuf,
}

/// The comparison of the daemon's answers with the kernel's.
#[derive(Default)]
struct Answers {
    /// Rows of [`CAUTIOUS`] that were needed.
    met: BTreeSet<usize>,
    wrong: Vec<String>,
}

// === impl Programs ===

impl Programs {
    fn new(scene: &Scene) -> Result<Self> {
        let dir = scene.path("programs");
        fs::create_dir(&dir)?;
        let plain = copy_into(Fixture::Credentials, &dir)?;
        for (name, owner, mode) in [
            ("plain", 0, 0o755),
            ("secret", 0, 0o711),
            ("of-user", NOBODY, 0o4755),
            ("of-other", OTHER, 0o4755),
        ] {
            let copy = dir.join(name);
            integration::copy_program(&plain, &copy)?;
            chown(&copy, Some(owner), None)?;
            fs::set_permissions(&copy, Permissions::from_mode(mode))?;
        }
        Ok(Self { dir })
    }

    /// The fixture with these steps.
    fn words(&self, steps: &str) -> Vec<OsString> {
        let word = |word: &str| match word.strip_prefix('@') {
            Some("") => self.dir.join("plain").into_os_string(),
            Some(copy) => self.dir.join(copy).into_os_string(),
            None => OsString::from(word.replace('_', " ")),
        };
        let steps = steps.split_ascii_whitespace();
        std::iter::once("@").chain(steps).map(word).collect()
    }

    fn command(&self, steps: &str) -> Command {
        let words = self.words(steps);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir("/");
        command
    }

    fn target(&self, steps: &str) -> Result<Target> {
        Target::spawn_command(self.command(steps)).with_context(|| steps.to_owned())
    }

    /// For each of these processes, whether the kernel lets such a caller trace it. `None` if no
    /// such caller can exist here.
    fn ask_kernel(&self, steps: &str, pids: &[i32]) -> Result<Option<BTreeMap<i32, bool>>> {
        let mut command = self.command(&format!("{steps} -- @ seize"));
        command.args(pids.iter().map(ToString::to_string));
        let ran = Running::start(command)?.wait()?;
        if ran.code == Some(LACKING) {
            return Ok(None);
        }
        ensure!(ran.code == Some(0), "{steps}: {ran:?}");
        let answer = |line: &str| {
            let (pid, errno) = line.split_once(' ')?;
            Some((pid.parse().ok()?, errno == "0"))
        };
        let answers = ran
            .out
            .lines()
            .map(answer)
            .collect::<Option<BTreeMap<_, _>>>();
        answers.map(Some).with_context(|| format!("{ran:?}"))
    }

    /// `xrayctl` as run by such a caller.
    fn caller(&self, cli: &Cli, steps: &str) -> Cli {
        cli.through(self.words(&format!("{steps} --")))
    }
}

// === impl Answers ===

impl Answers {
    fn compare(&mut self, caller: &str, target: &str, how: &str, kernel: bool, daemon: bool) {
        let row = |(of, on, _): &(&str, &str, &str)| *of == caller && (*on == "*" || *on == target);
        match (kernel, daemon, CAUTIOUS.iter().position(row)) {
            (true, true, _) | (false, false, _) => {}
            (true, false, Some(row)) => drop(self.met.insert(row)),
            (true, false, None) | (false, true, _) => self.wrong.push(format!(
                "{caller}, {target}, {how}: kernel {kernel}, daemon {daemon}"
            )),
        }
    }

    fn finish(self) -> Result<()> {
        ensure!(self.wrong.is_empty(), "\n{}", self.wrong.join("\n"));
        let unmet = |row: &usize| !self.met.contains(row);
        let unmet: Vec<usize> = (0..CAUTIOUS.len()).filter(unmet).collect();
        ensure!(unmet.is_empty(), "not met: {unmet:?}");
        Ok(())
    }
}

/// The processes in a list; empty for a caller to whom the daemon shows no process.
fn shown(cli: &Cli, list: &str) -> Result<BTreeSet<i32>> {
    let ran = cli.run([list, "--json"])?;
    if ran.code != Some(0) {
        ran.refused("permission")?;
        return Ok(BTreeSet::new());
    }
    let value: Value = serde_json::from_str(&ran.out)?;
    let pids = rows(&value, "processes")?.iter().map(|row| {
        let pid = row["pid"].as_i64().context("a row without a process")?;
        Ok(i32::try_from(pid)?)
    });
    pids.collect()
}

fn is_allowed(ran: &Ran) -> Result<bool> {
    if ran.code == Some(0) {
        return Ok(true);
    }
    ran.refused("permission")?;
    Ok(false)
}

#[test]
fn the_daemon_refuses_the_callers_that_the_kernel_refuses() -> Result<()> {
    const NAME: &str = "the_daemon_refuses_the_callers_that_the_kernel_refuses";
    if !integration::is_root_for(NAME)? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let programs = Programs::new(&scene)?;
    let daemon = scene.daemon()?;
    let root = scene.with(&daemon)?;
    let targets = TARGETS
        .iter()
        .map(|&(name, steps)| Ok((name, programs.target(steps)?)));
    let targets = targets.collect::<Result<Vec<_>>>()?;
    let pids: Vec<i32> = targets.iter().map(|(_, target)| target.pid()).collect();
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if matches!(yama.trim(), "" | "0") {
        let why = "the kernel has no Yama, or kernel.yama.ptrace_scope is 0";
        cannot_run(&format!("{NAME}, with Yama"), why)?;
    }

    let mut answers = Answers::default();
    let mut kernel = BTreeMap::new();
    for &(name, steps) in CALLERS {
        let Some(allowed) = programs.ask_kernel(steps, &pids)? else {
            cannot_run(
                &format!("{NAME}, {name}"),
                "the kernel has nothing of the kind",
            )?;
            continue;
        };
        let listed = shown(&programs.caller(&root, steps), "ps")?;
        for (target, process) in &targets {
            let pid = process.pid();
            answers.compare(name, target, "ps", allowed[&pid], listed.contains(&pid));
        }
        kernel.insert(name, (steps, allowed));
    }
    let (steps, allowed) = &kernel["user"];
    let user = programs.caller(&root, steps);
    for (target, process) in &targets {
        let pid = process.pid();
        let attached = is_allowed(&user.run(["attach", &pid.to_string()])?)?;
        answers.compare("user", target, "attach", allowed[&pid], attached);
        if attached {
            user.ok(["detach", &pid.to_string()])?;
        }
    }
    // Sessions of root's, as each caller sees them.
    for pid in &pids {
        root.ok(["attach", &pid.to_string()])?;
    }
    for (name, (steps, allowed)) in &kernel {
        let caller = programs.caller(&root, steps);
        let listed = shown(&caller, "status")?;
        for (target, process) in &targets {
            let pid = process.pid();
            answers.compare(name, target, "status", allowed[&pid], listed.contains(&pid));
        }
        if !listed.is_empty() {
            continue;
        }
        // A caller that sees no process detaches from none.
        let ran = caller.run(["detach", "--all"])?;
        ensure!(
            ran.code == Some(0) || is_allowed(&ran).is_ok(),
            "{name}: {ran:?}"
        );
        let left = shown(&root, "status")?;
        ensure!(
            left.len() == pids.len(),
            "{name} detached from a process: {left:?}"
        );
    }
    let (_, allowed) = &kernel["user"];
    user.ok(["detach", "--all"])?;
    let left = shown(&root, "status")?;
    for (target, process) in &targets {
        let pid = process.pid();
        answers.compare(
            "user",
            target,
            "detach",
            allowed[&pid],
            !left.contains(&pid),
        );
    }
    answers.finish()?;
    root.ok(["detach", "--all"])?;
    Ok(())
}

/// A daemon in a user namespace sees one number for all users without a number there. A user with
/// that number may exist, too.
#[test]
fn a_user_without_a_number_is_not_taken_for_the_one_that_has_it() -> Result<()> {
    const NAME: &str = "a_user_without_a_number_is_not_taken_for_the_one_that_has_it";
    if !integration::is_root_for(NAME)? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let programs = Programs::new(&scene)?;
    let xrayd = scene.path("xrayd");
    integration::copy_program(&integration::xrayd()?, &xrayd)?;
    // A place where root of the namespace may make the socket.
    chown(scene.path("."), Some(100_000), None)?;
    let mut command = programs.command("user-namespace 0_100000_65536 gid 0 0 0 uid 0 0 0 --");
    command.arg(&xrayd);
    let daemon = scene.daemon_by(command)?;
    let root = scene.with(&daemon)?;
    let inside = format!("join {}", daemon.pid());
    // Number 65534 inside, 165534 outside.
    let nobody = programs.target(&format!(
        "{inside} gid 65534 65534 65534 uid 65534 65534 65534 -- @"
    ))?;
    let pid = nobody.pid();
    for (steps, kernel, daemon) in [
        // Root of the namespace.
        (format!("{inside} gid 0 0 0 uid 0 0 0"), true, true),
        // Root of the machine, which has no number inside and no capability.
        (format!("{inside} caps 0"), false, false),
        // The same with all capabilities inside. The daemon sees a user without a number.
        (inside.clone(), false, false),
        // The user itself, which looks the same as a user without a number.
        (
            format!("{inside} gid 65534 65534 65534 uid 65534 65534 65534"),
            true,
            false,
        ),
        // Callers outside the namespace.
        (String::new(), true, false),
        (
            "gid 165534 165534 165534 uid 165534 165534 165534".to_owned(),
            false,
            false,
        ),
    ] {
        let allowed = programs
            .ask_kernel(&steps, &[pid])?
            .context("no namespaces")?;
        ensure!(allowed[&pid] == kernel, "{steps}: {allowed:?}");
        let listed = shown(&programs.caller(&root, &steps), "ps")?;
        ensure!(listed.contains(&pid) == daemon, "{steps}: {listed:?}");
    }
    Ok(())
}
