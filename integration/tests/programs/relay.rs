//! `xray-relay`: what policies record, as files.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, GroundTruth, Target, build, is_root_for, relay, soak, wait_until,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::cli_profile::ensure_exact as ensure_exact_sums;
use crate::cli_trigger::{calls_of, times};
use crate::scene::{Cli, Daemon, NOBODY, Scene, ensure_as_compiled, row_of, rows, sleds_on};
use crate::trace::read;

/// A daemon with a policy that has files, and a user for the relay.
struct Fleet {
    scene: Scene,
    program: PathBuf,
}

/// A relay, which is killed when this is dropped.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Relay {
    /// Stops it as a service manager does.
    fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM)?;
        let status = wait_until(DEADLINE, "the relay ends", || Ok(self.0.try_wait()?))?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

impl Fleet {
    fn new(mode: &str) -> Result<Self> {
        Self::of(Fixture::Counted, mode, "*", "")
    }

    /// With this program, whose functions match the glob, and this text behind the policy.
    fn of(fixture: Fixture, mode: &str, enable: &str, more: &str) -> Result<Self> {
        let scene = Scene::public()?;
        let program = scene.path("service");
        integration::copy_program(&build(fixture)?, &program)?;
        integration::copy_program(&relay()?, &scene.path("xray-relay"))?;
        fs::create_dir(scene.path("recordings"))?;
        chown(scene.path("recordings"), Some(NOBODY), Some(NOBODY))?;
        fs::create_dir(scene.path("policies.d"))?;
        let fleet = Self { scene, program };
        let program = fleet.program.display().to_string();
        fleet.write(
            "policies.d/p.toml",
            &format!(
                "name = \"p\"\n[match]\nexe = {program:?}\n[trace]\nmode = {mode:?}\n\
                 enable = {enable:?}\nring_size = \"16MiB\"\n[output]\nevery = \"1s\"\n\
                 max_file = \"1MiB\"\n{more}"
            ),
        )?;
        fleet.write(
            "access.toml",
            &format!(
                "[[allow]]\nto = {{ user = \"{NOBODY}\", confined = true }}\nverbs = \"recordings\"\n"
            ),
        )?;
        Ok(fleet)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.scene.path(name);
        fs::write(&path, text)?;
        Ok(fs::set_permissions(
            path,
            fs::Permissions::from_mode(0o644),
        )?)
    }

    fn daemon(&self) -> Result<Daemon> {
        let paths = ["state", "policies.d", "access.toml"].map(|name| self.scene.path(name));
        let [state, policies, access] = paths.map(|path| path.display().to_string());
        self.scene.daemon_with(&[
            "--state-dir",
            &state,
            "--policies-dir",
            &policies,
            "--access-file",
            &access,
            "--retain-in-files",
        ])
    }

    /// A relay of a user without rights, in a sandbox as its unit has one.
    fn relay(&self, daemon: &Daemon) -> Result<Relay> {
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.scene.path("relay.log"))?;
        let id = NOBODY.to_string();
        let child = Command::new("setpriv")
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .args(["--no-new-privs"])
            .arg(self.scene.path("xray-relay"))
            .args(["--leave-mib", "0", "--socket"])
            .arg(daemon.socket())
            .arg("--folder")
            .arg(self.scene.path("recordings"))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start the relay")?;
        Ok(Relay(child))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.scene.path("relay.log")).unwrap_or_default()
    }

    fn spawn(&self, calls: u32) -> Result<Target> {
        let mut command = Command::new(&self.program);
        command.args(["--threads", "3", "--calls", &calls.to_string()]);
        Target::spawn_command(command)
    }

    /// The recordings, as xrayctl lists them.
    fn list(&self, cli: &Cli, what: &str) -> Result<Vec<Value>> {
        let folder = self.scene.path("recordings").display().to_string();
        let listed = cli.json(["recordings", what, "--folder", &folder])?;
        let key = if what == "list" { "recordings" } else { what };
        Ok(rows(&listed, key)?.to_vec())
    }

    /// The paths of the whole recordings.
    fn files(&self, cli: &Cli) -> Result<Vec<PathBuf>> {
        let listed = self.list(cli, "list")?;
        let whole = listed.iter().filter(|row| row["is_part"] == false);
        let names = whole.filter_map(|row| row["name"].as_str());
        let root = self.scene.path("recordings");
        Ok(names.map(|name| root.join(name)).collect())
    }
}

fn wait_for_files(fleet: &Fleet, cli: &Cli, count: usize) -> Result<()> {
    let what = format!("there are {count} recordings");
    let waited = wait_until(DEADLINE, &what, || {
        Ok((fleet.files(cli)?.len() >= count).then_some(()))
    });
    waited.with_context(|| fleet.log())
}

/// A disk with little room, while this lives.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: &Path) -> Result<Self> {
        let mib = soak(64, 2048);
        let options = format!("size={mib}m,mode=0750,uid={NOBODY},gid={NOBODY}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "recordings"]);
        let status = mount.arg(folder).status()?;
        ensure!(status.success(), "cannot mount a disk: {status}");
        Ok(Self(folder.to_owned()))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Takes all of its room.
    fn fill(&self) -> Result<()> {
        let mut filler = fs::File::create(self.filler())?;
        while filler.write_all(&[0; 4096]).is_ok() {}
        Ok(())
    }

    fn free(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        let status = unmount.arg("--lazy").arg(&self.0).status();
        assert!(
            std::thread::panicking() || status.is_ok_and(|it| it.success()),
            "cannot unmount {}",
            self.0.display()
        );
    }
}

fn wait_for_recorder(fleet: &Fleet, cli: &Cli, target: &Target) -> Result<()> {
    let end = format!("-{}.xtrace", target.pid());
    wait_until(DEADLINE, "a file of the process is begun", || {
        let listed = fleet.list(cli, "list")?;
        let mut names = listed.iter().filter_map(|row| row["name"].as_str());
        Ok(names.any(|name| name.contains(&end)).then_some(()))
    })
}

fn wait_for_traced(cli: &Cli, target: &Target) -> Result<()> {
    wait_until(DEADLINE, "the policy has the process", || {
        let listed = cli.json(["policy", "list"])?;
        let traced = &rows(&listed, "policies")?[0]["traced"];
        Ok((*traced == Value::from(vec![target.pid()])).then_some(()))
    })
}

/// The calls of all files together.
fn account(cli: &Cli, files: &[PathBuf]) -> Result<Value> {
    let files: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
    let command = [
        &["account"],
        &files[..],
        &["--format", "json", "--top", "0"],
    ]
    .concat();
    Ok(serde_json::from_str(&cli.ok(command)?)?)
}

/// Each call is in one file, though the relay and the daemon are killed in between.
#[test]
fn profiles_of_periods_add_up_to_all_calls() -> Result<()> {
    if !is_root_for("profiles_of_periods_add_up_to_all_calls")? {
        return Ok(());
    }
    let fleet = Fleet::new("profile")?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    let mut target = fleet.spawn(2000)?;
    wait_for_traced(&cli, &target)?;
    let relay = fleet.relay(&daemon)?;
    wait_for_files(&fleet, &cli, 1)?;
    // A relay that is killed has the calls since its latest file written by the next one.
    drop(relay);
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let before = fleet.files(&cli)?.len();
    let relay = fleet.relay(&daemon)?;
    wait_for_files(&fleet, &cli, before + 1)?;
    daemon.kill()?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    let before = fleet.files(&cli)?.len();
    wait_for_files(&fleet, &cli, before + 2)?;
    relay.stop()?;
    let files = fleet.files(&cli)?;
    let table = account(&cli, &files)?;
    ensure_exact_sums(&table, &truth).with_context(|| fleet.log())?;
    let losses = fleet.list(&cli, "losses")?;
    ensure!(losses.is_empty(), "{losses:#?}");
    let mode = fs::metadata(&files[0])?.permissions().mode();
    ensure!(mode & 0o777 == 0o640, "{mode:o}");
    cli.ok(["detach", "--all"])?;
    Ok(())
}

/// The files of a stream have each event once.
#[test]
fn the_files_of_a_stream_have_each_event_once() -> Result<()> {
    if !is_root_for("the_files_of_a_stream_have_each_event_once")? {
        return Ok(());
    }
    let fleet = Fleet::new("stream")?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    let mut target = fleet.spawn(40_000)?;
    wait_for_traced(&cli, &target)?;
    let _relay = fleet.relay(&daemon)?;
    wait_for_files(&fleet, &cli, 1)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    target.kill()?;
    wait_until(DEADLINE, "all files are whole", || {
        let listed = fleet.list(&cli, "list")?;
        Ok(listed
            .iter()
            .all(|row| row["is_part"] == false)
            .then_some(()))
    })?;
    let files = fleet.files(&cli)?;
    let mut events = 0;
    for file in &files {
        let info = cli.json(["info".as_ref(), file.as_os_str()])?;
        ensure!(info["trace"]["completeness"] == "complete", "{info}");
        let number = |key: &str| info["events"][key].as_u64().unwrap_or(0);
        events += number("entries") + number("exits") + number("tail_exits");
        ensure!(number("losses") == 0, "{info}");
    }
    ensure!(
        events == truth.events(),
        "{events} events in {} files instead of {}: {}",
        files.len(),
        truth.events(),
        fleet.log()
    );
    let largest = files
        .iter()
        .map(|file| fs::metadata(file).map(|it| it.len()));
    let largest = largest.collect::<std::io::Result<Vec<u64>>>()?;
    let most = largest.iter().max().copied().unwrap_or(0);
    ensure!(files.len() > 2 && most < 4 << 20, "{largest:?}");

    ensure!(fleet.list(&cli, "losses")?.is_empty(), "{}", fleet.log());
    let last = files.last().context("no file")?;
    fetch_and_remove(&fleet, &cli, last)
}

/// A stream begins with what was traced before there was a relay. It goes on where it ended: after
/// a relay that was killed, a daemon that was killed or restarted, a relay that stood still, and a
/// disk without room. A process that has ended meanwhile has its rest in a file.
#[test]
fn a_stream_goes_on_where_it_ended() -> Result<()> {
    if !is_root_for("a_stream_goes_on_where_it_ended")? {
        return Ok(());
    }
    let fleet = Fleet::new("stream")?;
    let disk = SmallDisk::mount(&fleet.scene.path("recordings"))?;
    let mut daemon = fleet.daemon()?;
    let mut cli = fleet.scene.with(&daemon)?;
    let mut command = Command::new(&fleet.program);
    command.args(["--threads", "3", "--calls", "0", "--pause", "200"]);
    let mut target = Target::spawn_command(command)?;
    wait_for_traced(&cli, &target)?;
    // Before there is a relay.
    target.send("go")?;
    std::thread::sleep(Duration::from_millis(300));
    let mut relay = fleet.relay(&daemon)?;
    let goes_on = |cli: &Cli| -> Result<()> {
        let before = fleet.files(cli)?.len();
        wait_for_files(&fleet, cli, before + 2)
    };
    goes_on(&cli)?;
    for _ in 0..soak(1, 40) {
        // In the middle of a file.
        drop(relay);
        std::thread::sleep(Duration::from_millis(700));
        relay = fleet.relay(&daemon)?;
        goes_on(&cli)?;
        daemon.kill()?;
        daemon = fleet.daemon()?;
        cli = fleet.scene.with(&daemon)?;
        goes_on(&cli)?;
        cli.ok(["daemon", "restart"])?;
        goes_on(&cli)?;
        let id = Pid::from_raw(relay.0.id().cast_signed());
        kill(id, Signal::SIGSTOP)?;
        std::thread::sleep(Duration::from_millis(1500));
        kill(id, Signal::SIGCONT)?;
        goes_on(&cli)?;
        let told = fleet.log().matches("No space left").count();
        disk.fill()?;
        wait_until(DEADLINE, "the relay has no room", || {
            let count = fleet.log().matches("No space left").count();
            Ok((count > told).then_some(()))
        })?;
        disk.free()?;
        goes_on(&cli)?;
    }
    // The policy lets the process go, and comes back. A client has the session meanwhile.
    let pid = target.pid().to_string();
    cli.ok(["enable", &pid, "--glob", "work::*"])?;
    let [policy, away] = ["policies.d/p.toml", "p.toml"].map(|name| fleet.scene.path(name));
    fs::rename(&policy, &away)?;
    cli.ok(["policy", "reload"])?;
    let mark = fleet.scene.path("recordings/p/.active").join(&pid);
    wait_until(DEADLINE, "the relay has let the process go", || {
        let text = fs::read_to_string(&mark)?;
        Ok(text.contains("\"is_left\":true").then_some(()))
    })?;
    fs::rename(&away, &policy)?;
    cli.ok(["policy", "reload"])?;
    goes_on(&cli)?;
    // The end of the process, with no relay and another daemon.
    drop(relay);
    let truth = GroundTruth::parse(&target.ask("stop", "result ")?)?;
    target.kill()?;
    wait_until(DEADLINE, "the policy has let the process go", || {
        let listed = cli.json(["policy", "list"])?;
        let traced = &rows(&listed, "policies")?[0]["traced"];
        Ok((*traced == Value::from(Vec::<i32>::new())).then_some(()))
    })?;
    daemon.kill()?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    let relay = fleet.relay(&daemon)?;
    wait_until(DEADLINE, "the relay has written the rest", || {
        Ok((!mark.exists()).then_some(()))
    })?;
    let (mut events, mut lost) = (0, 0);
    for file in fleet.files(&cli)? {
        let info = cli.json(["info".as_ref(), file.as_os_str()])?;
        let number = |key: &str| info["events"][key].as_u64().unwrap_or(0);
        events += number("entries") + number("exits") + number("tail_exits");
        lost += number("losses");
    }
    ensure!(
        (events, lost) == (truth.events(), 0),
        "{events} events, and {lost} lost ones, of {}: {}",
        truth.events(),
        fleet.log()
    );
    let losses = fleet.list(&cli, "losses")?;
    ensure!(losses.is_empty(), "{losses:#?}");

    // A relay that starts later has nothing to add.
    let before = fleet.files(&cli)?.len();
    relay.stop()?;
    let relay = fleet.relay(&daemon)?;
    std::thread::sleep(Duration::from_secs(4));
    ensure!(fleet.files(&cli)?.len() == before, "{}", fleet.log());

    // What the daemon does not have any more is told.
    let mut other = fleet.spawn(10)?;
    wait_for_traced(&cli, &other)?;
    wait_for_recorder(&fleet, &cli, &other)?;
    drop(relay);
    other.kill()?;
    let pid = other.pid().to_string();
    wait_until(DEADLINE, "the session has ended", || {
        Ok(cli.json(["detach", &pid]).is_ok().then_some(()))
    })?;
    let _relay = fleet.relay(&daemon)?;
    let losses = wait_until(DEADLINE, "the loss is told", || {
        let losses = fleet.list(&cli, "losses")?;
        Ok((!losses.is_empty()).then_some(losses))
    })?;
    ensure!(
        losses.len() == 1 && losses[0]["pid"] == other.pid() && losses[0]["policy"] == "p",
        "{losses:#?}"
    );
    Ok(())
}

/// `recordings fetch` copies a recording, and `recordings rm` removes it.
fn fetch_and_remove(fleet: &Fleet, cli: &Cli, file: &Path) -> Result<()> {
    let root = fleet.scene.path("recordings");
    let name = file.strip_prefix(&root)?.to_str().context("no text")?;
    let folder = root.to_str().context("no text")?;
    cli.ok(["recordings", "fetch", name, "--folder", folder])?;
    let own = file.file_name().context("no name")?;
    ensure!(fs::read(fleet.scene.path("").join(own))? == fs::read(file)?);
    cli.ok(["recordings", "rm", name, "--folder", folder])?;
    ensure!(!file.exists());
    cli.run(["recordings", "rm", "../x/y", "--folder", folder])?
        .failed(1, &["no recording"])?;
    Ok(())
}

/// A policy with a trigger on slow calls, and one on crashes.
const TRIGGERS: &str = r#"
[[trigger]]
when = "duration(slow) > 50ms"
snapshot = { before = "300ms", after = "100ms" }
limit = "2/1h"

[[trigger]]
when = "death"
"#;

/// Waits for so many firings, and returns them.
fn wait_for_firings(fleet: &Fleet, cli: &Cli, count: usize) -> Result<Vec<Value>> {
    let firings = wait_until(
        DEADLINE,
        &format!("a trigger has fired {count} times"),
        || {
            let mut firings = fleet.list(cli, "firings")?;
            // Those without a process are moments beyond the limit.
            firings.retain(|firing| firing["pid"] != 0);
            Ok((firings.len() >= count).then_some(firings))
        },
    );
    let firings = firings.with_context(|| fleet.log())?;
    ensure!(firings.len() == count, "{firings:#?}");
    Ok(firings)
}

/// Waits until triggers are armed in a process.
fn wait_for_armed(cli: &Cli, target: &Target, count: u64) -> Result<()> {
    let what = format!("{count} triggers are armed in process {}", target.pid());
    wait_until(DEADLINE, &what, || {
        let status = cli.json(["status"])?;
        let row = row_of(&status, target.pid())?;
        Ok(row
            .is_some_and(|row| row["triggers"] == count)
            .then_some(()))
    })
}

/// Waits for so many files with the sums of a process.
fn wait_for_sums(fleet: &Fleet, cli: &Cli, target: &Target, count: usize) -> Result<()> {
    let end = format!("-{}.xtrace", target.pid());
    wait_until(DEADLINE, "the sums of a period are in a file", || {
        let files = fleet.list(cli, "list")?;
        let names = files.iter().filter_map(|row| row["name"].as_str());
        let found = names.filter(|name| name.ends_with(&end)).count();
        Ok((found >= count).then_some(()))
    })
}

/// True if it is told that a daemon has taken sums along.
fn are_sums_lost(fleet: &Fleet, cli: &Cli) -> Result<bool> {
    let losses = fleet.list(cli, "losses")?;
    let mut whys = losses.iter().filter_map(|loss| loss["why"].as_str());
    Ok(whys.any(|why| why.contains("alone had a part")))
}

/// For a trigger that needs each event, the process records events, and the daemon adds them up. A
/// daemon that is killed takes these sums along.
#[test]
fn sums_that_a_killed_daemon_alone_had_are_told_as_lost() -> Result<()> {
    const RATE: &str = "[[trigger]]\nwhen = \"rate(tick) > 1000000/s\"\n";
    if !is_root_for("sums_that_a_killed_daemon_alone_had_are_told_as_lost")? {
        return Ok(());
    }
    let fleet = Fleet::of(Fixture::Triggers, "profile", "tick", RATE)?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    let relay = fleet.relay(&daemon)?;
    let mut command = Command::new(&fleet.program);
    command.args(["--threads", "2"]);
    let target = Target::spawn_command(command)?;
    wait_for_armed(&cli, &target, 1)?;
    wait_for_sums(&fleet, &cli, &target, 1)?;
    drop(relay);
    daemon.kill()?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    let _relay = fleet.relay(&daemon)?;
    wait_until(DEADLINE, "the loss of sums is told", || {
        Ok(are_sums_lost(&fleet, &cli)?.then_some(()))
    })
}

/// The slow call of a process of a policy is in a file of its own, with what happened around it,
/// though nobody is logged in. Other processes are not in the file.
#[test]
fn the_slow_calls_of_a_service_are_in_files() -> Result<()> {
    if !is_root_for("the_slow_calls_of_a_service_are_in_files")? {
        return Ok(());
    }
    for mode in ["profile", "stream", "flight"] {
        slow_calls_and_crashes(mode).with_context(|| format!("in mode {mode}"))?;
    }
    Ok(())
}

fn slow_calls_and_crashes(mode: &str) -> Result<()> {
    let fleet = Fleet::of(Fixture::Triggers, mode, "tick", TRIGGERS)?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    // The relay waits before there is a process.
    let relay = fleet.relay(&daemon)?;
    let spawn = || {
        let mut command = Command::new(&fleet.program);
        command.args(["--threads", "2"]);
        Target::spawn_command(command)
    };
    let (mut slow, mut other) = (spawn()?, spawn()?);
    for target in [&slow, &other] {
        wait_for_armed(&cli, target, 2)?;
    }
    slow.ask("slow 1", "slow ")?;
    let (begin, end) = times(&slow.ask("slow 120", "slow ")?)?;
    let fired = wait_for_firings(&fleet, &cli, 1)?.remove(0);
    let expected = ["duration(slow) > 50ms", "slow"].map(Value::from);
    ensure!(
        [&fired["condition"], &fired["function"]] == expected.each_ref() && fired["trigger"] == 1,
        "{fired}"
    );
    ensure!(
        fired["pid"] == slow.pid() && fired["tid"] == slow.pid(),
        "{fired}"
    );
    let took = fired["value_ns"].as_u64().context("no time")?;
    ensure!(
        (119_900_000..=end - begin + 100_000).contains(&took),
        "{fired}"
    );
    let name = fired["recording"].as_str().context("no file")?;
    ensure!(
        name.ends_with(&format!("-{}-trigger1.xtrace", slow.pid())),
        "{name}"
    );
    let trace = read(&fleet.scene.path("recordings").join(name))?;
    let pids: Vec<u32> = trace
        .processes()
        .iter()
        .map(|process| process.pid)
        .collect();
    ensure!(pids == [slow.pid().cast_unsigned()], "{pids:?}");
    let calls = calls_of(&trace, "slow")?;
    let whole = calls.iter().filter(|call| {
        call.begun + 100_000 >= begin && call.ended.is_some_and(|ended| ended <= end + 100_000)
    });
    ensure!(whole.count() == 1, "{calls:?}, {begin} to {end}");
    let ticks = calls_of(&trace, "tick")?;
    let within = |from: u64, to: u64| ticks.iter().any(|call| (from..to).contains(&call.begun));
    ensure!(within(0, begin) && within(begin, end) && within(end, u64::MAX));

    // The limit is for all processes of the policy.
    other.ask("slow 60", "slow ")?;
    let second = wait_for_firings(&fleet, &cli, 2)?.remove(1);
    ensure!(second["pid"] == other.pid(), "{second}");
    other.ask("slow 60", "slow ")?;
    wait_until(DEADLINE, "the moment beyond the limit is told", || {
        let firings = fleet.list(&cli, "firings")?;
        Ok(firings
            .iter()
            .any(|firing| firing["skipped"] == 1)
            .then_some(()))
    })?;
    // A crash has a limit of its own.
    other.send("segv")?;
    let crash = wait_for_firings(&fleet, &cli, 3)?.remove(2);
    ensure!(
        crash["pid"] == other.pid() && crash["condition"] == "death",
        "{crash}"
    );
    let name = crash["recording"]
        .as_str()
        .with_context(|| crash.to_string())?;
    let trace = read(&fleet.scene.path("recordings").join(name))?;
    ensure!(!calls_of(&trace, "tick")?.is_empty());

    // The next daemon arms the triggers for the next relay, and the gaps are told.
    ensure!(
        fleet
            .list(&cli, "losses")?
            .iter()
            .all(|loss| loss["pid"] != 0)
    );
    let is_profile = mode == "profile";
    if is_profile {
        wait_for_sums(&fleet, &cli, &slow, 1)?;
    }
    drop(relay);
    daemon.kill()?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    let relay = fleet.relay(&daemon)?;
    wait_for_armed(&cli, &slow, 2)?;
    slow.ask("slow 60", "slow ")?;
    let last = wait_for_firings(&fleet, &cli, 4)?.remove(3);
    ensure!(last["pid"] == slow.pid() && last["trigger"] == 1, "{last}");
    let gaps = fleet.list(&cli, "losses")?;
    let gaps = gaps.iter().filter(|loss| loss["pid"] == 0).count();
    ensure!(gaps == 2, "{gaps} gaps of two triggers: {}", fleet.log());
    if is_profile {
        // The program has gone on adding calls up, so the killed daemon has taken no sums along.
        wait_for_sums(&fleet, &cli, &slow, 2)?;
        ensure!(!are_sums_lost(&fleet, &cli)?, "{}", fleet.log());
    }

    // A policy that changes has its new triggers armed, and the functions of the others go off.
    let path = fleet.scene.path("policies.d/p.toml");
    let changed = fs::read_to_string(&path)?.replace("> 50ms", "> 1h");
    fs::write(
        &path,
        changed
            .split("[[trigger]]\nwhen = \"death\"")
            .next()
            .unwrap_or(""),
    )?;
    cli.ok(["policy", "reload"])?;
    wait_for_armed(&cli, &slow, 1)?;
    slow.ask("slow 60", "slow ")?;
    relay.stop()?;
    wait_for_armed(&cli, &slow, 0)?;
    wait_for_firings(&fleet, &cli, 4)?;
    // Only the function of the policy is on.
    ensure!(sleds_on(&slow)? == 2, "{}", sleds_on(&slow)?);

    // A process that the policy lets go is let go by the trigger, too, while the relay waits.
    let _relay = fleet.relay(&daemon)?;
    wait_for_armed(&cli, &slow, 1)?;
    let program = fleet.program.display().to_string();
    let elsewhere = fs::read_to_string(&path)?.replace(&program, "/no/such/program");
    fs::write(&path, elsewhere)?;
    cli.ok(["policy", "reload"])?;
    wait_until(DEADLINE, "the daemon has detached", || {
        let status = cli.json(["status"])?;
        Ok(row_of(&status, slow.pid())?.is_none().then_some(()))
    })?;
    ensure_as_compiled(&slow)
}
