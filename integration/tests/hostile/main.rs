//! Programs that attack their tracer during an attach or a trace.
//!
//! Each test starts a daemon as root and one program of another user that makes one attack
//! (`fixtures/attacker.c`, `fixtures/rewriter.c`). That user runs every command on the program,
//! over and over. A command may be refused. After each attack the same holds: no file outside is
//! changed, no call was made that a filter forbids, and the daemon lives and has its sessions,
//! threads, descriptors and memory back. A second user traces another program all the time, and
//! gets answers while the attack goes on.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use integration::scene::{Cli, Daemon, NOBODY, Scene, rows};
use integration::{DEADLINE, Fixture, Target, copy_into, is_root_for, wait_until};
use procfs::process::Process;

/// The second user, who owns nothing of the first user's.
const SECOND: u32 = NOBODY - 1;
/// Rounds of all commands against one attack, and the least number of turns of the second user in
/// that time.
const ROUNDS: usize = 2;
/// The second user's commands end within this many of the first user's rounds. Each of a round's 13
/// commands starts a client and waits for an answer, as the second user's 5 commands do. So under
/// any load 130 commands take longer than 5, unless the 5 wait for the others.
const ROUNDS_WHILE_SERVED: usize = 10;
/// The count of rounds does not find a wait for another command that takes long. Without such
/// waits, the fastest of the second user's turns takes about as long as the slowest one before the
/// attack: 1.0 to 1.3 times on two processors, which the attack, its commands and the second user
/// share. If one command in five waits two seconds for a lock, a turn takes ten times as long.
const SLOWER: u32 = 5;
/// The quotas of both users together. Each may take half of them. Mapped rings are address space.
const QUOTAS: [(&str, u64); 3] = [
    ("mapped", 128 << 20),
    ("retained", 16 << 20),
    ("patterns", 4 << 20),
];
/// The memory that the daemon needs at most beyond its memory for an honest program.
const MOST_MEMORY: u64 = 52 << 20;
/// The options for the rings of both users, which fit the quota.
const RINGS: [&str; 4] = ["--ring-size", "64KiB", "--max-threads", "64"];
/// Exit codes of commands that succeeded, found nothing, or were refused.
const ANSWERED: [i32; 4] = [0, 1, 3, 4];
/// The names of the threads of the pools, which run the work of all sessions.
const POOLS: [&str; 2] = ["controller", "collector"];
const CONTENT: &[u8] = b"a file of root's\n";

/// A daemon, an attacker, and a second user's program.
#[derive(Debug)]
struct Attack {
    scene: Scene,
    daemon: Daemon,
    attacker: Target,
    honest: Target,
    /// A file that only root may write.
    outside: PathBuf,
    /// Only a call that the attacker's filter forbids makes a file here.
    forbidden: PathBuf,
}

/// Resources of the daemon.
#[derive(Debug)]
struct Held {
    /// Threads beside those of the pools.
    threads: usize,
    /// Threads of the pools. They begin when there is work for them, and stay.
    pooled: usize,
    descriptors: usize,
    /// Its peak memory so far, in bytes.
    memory: u64,
}

// === impl Attack ===

impl Attack {
    fn begin(mode: &str) -> Result<Self> {
        let scene = Scene::public()?;
        let outside = scene.path("outside");
        fs::write(&outside, CONTENT)?;
        let programs = folder_of(&scene, "programs", NOBODY)?;
        let forbidden = programs.join("forbidden");
        let attacker = match mode {
            "calls" => {
                let file = programs.join("file");
                fs::write(&file, "")?;
                chown(&file, Some(NOBODY), Some(NOBODY))?;
                let mut command = Command::new(copy_into(Fixture::Rewriter, &programs)?);
                command.arg("any").arg(file).arg(&forbidden).arg("again");
                command
            }
            mode => {
                let program = copy_into(Fixture::Attacker, &programs)?;
                chown(&program, Some(NOBODY), Some(NOBODY))?;
                let file = match mode {
                    "descriptors" => outside.clone(),
                    // Any file with sleds.
                    _ => {
                        let library = programs.join("library.so");
                        fs::copy(&program, &library)?;
                        chown(&library, Some(NOBODY), Some(NOBODY))?;
                        library
                    }
                };
                let mut command = Command::new(program);
                command.arg(mode).arg(file);
                command
            }
        };
        let attacker = spawn(attacker, NOBODY)?;
        let programs = folder_of(&scene, "honest", SECOND)?;
        let mut honest = Command::new(copy_into(Fixture::Counted, &programs)?);
        honest.args(["--threads", "1"]);
        let honest = spawn(honest, SECOND)?;
        let quotas = QUOTAS.map(|(name, bytes)| format!("{name}={}/{bytes}", bytes / 2));
        let options: Vec<&str> = quotas.iter().flat_map(|it| ["--quota", it]).collect();
        let daemon = scene.daemon_with(&options)?;
        Ok(Self {
            scene,
            daemon,
            attacker,
            honest,
            outside,
            forbidden,
        })
    }

    /// Runs every command as the attacker's user.
    fn commands(&self, cli: &Cli) -> Result<()> {
        let pid = self.attacker.pid().to_string();
        let snapshot = [
            "snapshot",
            "--pid",
            &pid,
            "--last",
            "1s",
            "--force",
            "-o",
            "/dev/null",
        ];
        let attach = [&["attach", &pid][..], &RINGS].concat();
        let commands = [
            &["doctor", &pid][..],
            &attach,
            &["ps"],
            &["enable", "--pid", &pid, "--all"],
            &["functions", "--pid", &pid],
            &snapshot,
            &["disable", "--pid", &pid, "--all"],
            &["enable", "--pid", &pid, "--all"],
            &["status", "--modules"],
            &["detach", &pid],
            // Takes over the memory of the first attach.
            &[&attach[..], &["--mode", "stream"]].concat(),
            &["enable", "--pid", &pid, "--all"],
            &["detach", &pid],
        ];
        for command in commands {
            let ran = cli.run(command)?;
            ensure!(
                ran.code.is_some_and(|code| ANSWERED.contains(&code)),
                "{command:?}: {ran:?}"
            );
        }
        Ok(())
    }

    /// A turn of the second user, who is never refused. Returns its duration.
    fn serve(&self, cli: &Cli) -> Result<Duration> {
        let begun = Instant::now();
        let pid = self.honest.pid().to_string();
        cli.ok(["ps"])?;
        cli.ok([&["attach", &pid][..], &RINGS].concat())?;
        cli.ok(["enable", "--pid", &pid, "--all"])?;
        cli.ok(["status"])?;
        cli.ok(["detach", &pid])?;
        Ok(begun.elapsed())
    }

    /// Runs both users at the same time. Returns the durations of the second user's turns.
    fn fight(&self, first: &Cli, second: &Cli) -> Result<Vec<Duration>> {
        let (rounds, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let attacking = scope.spawn(|| -> Result<()> {
                while !is_over.load(SeqCst) {
                    self.commands(first)?;
                    rounds.fetch_add(1, SeqCst);
                }
                Ok(())
            });
            let served = || -> Result<Vec<Duration>> {
                let mut turns = Vec::new();
                while turns.len() < ROUNDS || rounds.load(SeqCst) < ROUNDS {
                    let before = rounds.load(SeqCst);
                    turns.push(self.serve(second)?);
                    let meanwhile = rounds.load(SeqCst) - before;
                    ensure!(
                        meanwhile < ROUNDS_WHILE_SERVED,
                        "not served in {meanwhile} rounds of another user"
                    );
                    self.nothing_outside_is_changed()?;
                    ensure!(!attacking.is_finished(), "the attack has ended");
                }
                Ok(turns)
            };
            let served = served();
            is_over.store(true, SeqCst);
            let attacked = attacking.join();
            attacked.map_err(|_| anyhow::anyhow!("the attacker's user panicked"))??;
            served
        })
    }

    fn nothing_outside_is_changed(&self) -> Result<()> {
        let found = fs::metadata(&self.outside)?;
        ensure!(found.uid() == 0 && found.len() == CONTENT.len() as u64);
        ensure!(fs::read(&self.outside)? == CONTENT, "a file was changed");
        ensure!(!self.forbidden.exists(), "a forbidden call was made");
        Ok(())
    }
}

// === impl Held ===

impl Held {
    fn by(daemon: &Daemon) -> Result<Self> {
        let process = Process::new(daemon.pid().cast_signed())?;
        let status = process.status()?;
        let names = thread_names(daemon)?;
        let pooled = names.iter().filter(|name| POOLS.contains(&name.trim()));
        let pooled = pooled.count();
        Ok(Self {
            threads: names.len() - pooled,
            pooled,
            descriptors: process.fd_count()?,
            memory: status.vmhwm.context("no VmHWM")? << 10,
        })
    }
}

/// A folder that this user owns.
fn folder_of(scene: &Scene, name: &str, user: u32) -> Result<PathBuf> {
    let folder = scene.path(name);
    fs::create_dir(&folder)?;
    chown(&folder, Some(user), Some(user))?;
    Ok(folder)
}

fn spawn(mut command: Command, user: u32) -> Result<Target> {
    command.uid(user).gid(user).current_dir("/");
    Target::spawn_command(command)
}

/// The most threads of the pools while no step of a session hangs: a thread for each processor, 4
/// to 8 and 2 to 8, and one thread each that watches.
fn most_pooled() -> Result<usize> {
    let processors = thread::available_parallelism()?.get();
    Ok(processors.clamp(4, 8) + processors.clamp(2, 8) + POOLS.len())
}

/// The names of the daemon's threads.
fn thread_names(daemon: &Daemon) -> Result<Vec<String>> {
    let tasks = Path::new("/proc")
        .join(daemon.pid().to_string())
        .join("task");
    let names = fs::read_dir(tasks)?
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    Ok(names.collect())
}

/// The names of the daemon's threads for sessions.
fn session_threads(daemon: &Daemon) -> Result<Vec<String>> {
    let names = thread_names(daemon)?.into_iter();
    let is_own = |name: &String| {
        ["attach-", "borrow-", "halt-", "follow-"]
            .iter()
            .any(|own| name.starts_with(own))
    };
    Ok(names.filter(is_own).collect())
}

fn survives(mode: &str) -> Result<()> {
    let test = format!("an attack by {mode}");
    if !is_root_for(&test)? {
        return Ok(());
    }
    let mut attack = Attack::begin(mode)?;
    let root = attack.scene.with(&attack.daemon)?;
    let (first, second) = (root.as_user(NOBODY), root.as_user(SECOND));
    let quiet = (0..ROUNDS).map(|_| attack.serve(&second));
    let quiet = quiet.collect::<Result<Vec<_>>>()?;
    let before = Held::by(&attack.daemon)?;
    let turns = attack.fight(&first, &second)?;
    let (fastest, usual) = (turns.iter().min(), quiet.iter().max());
    let (fastest, usual) = fastest.zip(usual).context("no turns")?;
    ensure!(
        *fastest <= SLOWER * *usual,
        "a turn takes {turns:?} instead of {quiet:?}"
    );

    root.run(["detach", "--all"])?;
    let left = root.json(["status"])?;
    ensure!(rows(&left, "processes")?.is_empty(), "{left}");
    let daemon = &attack.daemon;
    wait_until(DEADLINE, "no session has a thread", || {
        Ok(session_threads(daemon)?.is_empty().then_some(()))
    })?;
    // Threads for requests end when they have had no request for a second, and threads that pools
    // have added for steps that hang when they have had no work for ten.
    let most_pooled = most_pooled()?;
    wait_until(DEADLINE, "threads and descriptors are given back", || {
        let after = Held::by(daemon)?;
        let is_back = after.threads <= before.threads && after.descriptors <= before.descriptors;
        Ok((is_back && after.pooled <= most_pooled).then_some(()))
    })
    .with_context(|| format!("{before:?}, then {:?}", Held::by(daemon)))?;
    let most = before.memory + MOST_MEMORY;
    let memory = Held::by(daemon)?.memory;
    ensure!(memory <= most, "the daemon took {memory} bytes of {most}");
    let log = attack.daemon.log();
    ensure!(
        !log.contains("panicked") && !log.contains("a bug in xrayd"),
        "{log}"
    );
    attack.honest.still_running()?;
    attack.attacker.still_running()
}

#[test]
fn descriptors_are_exchanged() -> Result<()> {
    survives("descriptors")
}

#[test]
fn mappings_come_and_go() -> Result<()> {
    survives("mappings")
}

#[test]
fn paths_lead_to_fifos_and_links() -> Result<()> {
    survives("files")
}

#[test]
fn text_is_overwritten() -> Result<()> {
    survives("text")
}

#[test]
fn tables_and_rings_are_forged() -> Result<()> {
    survives("tables")
}

#[test]
fn programs_fork_and_execute() -> Result<()> {
    survives("programs")
}

#[test]
fn threads_come_and_go_without_a_main_thread() -> Result<()> {
    survives("threads")
}

#[test]
fn borrowed_instructions_are_rewritten_under_a_filter() -> Result<()> {
    survives("calls")
}
