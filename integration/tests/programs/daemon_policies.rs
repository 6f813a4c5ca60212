//! Tracing policies: the daemon attaches to processes by itself, and lets them go.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, build, opens_map_files, wait_until};
use serde_json::Value;

use crate::cli_follow::{child_of, is_traced};
use crate::scene::{
    Cli, Daemon, NOBODY, Scene, all_on, ensure_as_compiled, row_of, rows, sleds_on, sleds_on_in,
};
use crate::trace::ensure_exact;

/// A daemon with a folder of policies, and copies of a program that only this test runs.
struct Fleet {
    scene: Scene,
    program: PathBuf,
}

impl Fleet {
    fn new() -> Result<Self> {
        let scene = Scene::public()?;
        fs::create_dir(scene.path("policies.d"))?;
        let program = scene.path("service");
        integration::copy_program(&build(Fixture::Counted)?, &program)?;
        Ok(Self { scene, program })
    }

    fn daemon(&self) -> Result<Daemon> {
        let path = |name| Some(self.scene.path(name).to_str()?.to_owned());
        let state = path("state").context("no text")?;
        let policies = path("policies.d").context("no text")?;
        self.scene
            .daemon_with(&["--state-dir", &state, "--policies-dir", &policies])
    }

    fn spawn(&self) -> Result<Target> {
        let mut command = Command::new(&self.program);
        command.args(["--threads", "2", "--calls", "300"]);
        Target::spawn_command(command)
    }

    /// The text of a policy for the program, with further lines in its tables.
    fn policy(&self, name: &str, matching: &str, trace: &str) -> String {
        let program = self.program.display().to_string();
        format!("name = {name:?}\n[match]\nexe = {program:?}\n{matching}\n[trace]\n{trace}\n")
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.scene.path("policies.d").join(file);
        fs::write(&path, text)?;
        Ok(fs::set_permissions(
            path,
            fs::Permissions::from_mode(0o644),
        )?)
    }
}

/// The row of a policy.
fn policy(cli: &Cli, name: &str) -> Result<Option<Value>> {
    let listed = cli.json(["policy", "list"])?;
    let mut rows = rows(&listed, "policies")?.iter();
    Ok(rows.find(|row| row["name"] == name).cloned())
}

/// Waits until a policy has functions on in exactly these processes.
fn wait_for(cli: &Cli, name: &str, targets: &[&Target]) -> Result<Value> {
    let mut pids: Vec<i32> = targets.iter().map(|target| target.pid()).collect();
    pids.sort_unstable();
    let mut last = Value::Null;
    let found = wait_until(DEADLINE, "the policy has its processes", || {
        last = policy(cli, name)?.unwrap_or_default();
        Ok((last["traced"] == Value::from(pids.clone())).then_some(()))
    });
    found.with_context(|| format!("{pids:?}: {last:#}"))?;
    Ok(last)
}

#[test]
fn processes_that_are_there_and_that_come_later_are_traced() -> Result<()> {
    let fleet = Fleet::new()?;
    let mut first = fleet.spawn()?;
    fleet.write(
        "service.toml",
        &fleet.policy(
            "service",
            "max_processes = 2",
            "mode = \"stream\"\nenable = \"*\"",
        ),
    )?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    wait_for(&cli, "service", &[&first])?;
    all_on(&first)?.context("not everything is on")?;
    let mut second = fleet.spawn()?;
    wait_for(&cli, "service", &[&first, &second])?;
    // What a process has done since is recorded.
    let truth = GroundTruth::parse(&second.ask("go", "result ")?)?;
    let pid = second.pid().to_string();
    cli.ok(["snapshot", &pid, "-o", "t.xtrace"])?;
    ensure_exact(&fleet.scene.path("t.xtrace"), &truth)?;
    let row = policy(&cli, "service")?.context("no policy")?;
    let events = row["events"].as_u64();
    ensure!(events > Some(0) && row["lost"] == 0, "{row}");
    // The third one has no place before another one has ended.
    let third = fleet.spawn()?;
    let row = wait_until(DEADLINE, "a process waits for a place", || {
        let row = policy(&cli, "service")?.context("no policy")?;
        Ok((row["beyond_max_processes"] == 1).then_some(row))
    })?;
    ensure!(row["matched"] == 3 && sleds_on(&third)? == 0, "{row}");
    second.kill()?;
    let row = wait_for(&cli, "service", &[&first, &third])?;
    ensure!(row["events"].as_u64() >= events, "{row}");
    let text = cli.ok(["policy", "status", "service"])?;
    ensure!(text.contains("2 matched, 2 traced"), "{text}");
    // Without its file, the policy leaves nothing.
    fs::remove_file(fleet.scene.path("policies.d").join("service.toml"))?;
    let text = cli.ok(["policy", "reload"])?;
    ensure!(text.contains("there are no policies"), "{text}");
    for target in [&first, &third] {
        ensure!(row_of(&cli.json(["status"])?, target.pid())?.is_none());
        ensure_as_compiled(target)?;
    }
    first.still_running()
}

/// A daemon that is killed leaves the functions on, and the next one goes on. A policy that is gone
/// by then is switched off.
#[test]
fn policies_outlive_the_daemon() -> Result<()> {
    if !opens_map_files()? {
        // Without map_files, the second daemon cannot open the rings of the first one.
        return Ok(());
    }
    let fleet = Fleet::new()?;
    let mut target = fleet.spawn()?;
    let stream = "mode = \"stream\"\nenable = \"*\"";
    fleet.write("file.toml", &fleet.policy("in-file", "", stream))?;
    fs::write(
        fleet.scene.path("a.toml"),
        fleet.policy("applied", "", stream),
    )?;
    let first = fleet.daemon()?;
    let cli = fleet.scene.with(&first)?;
    cli.ok(["policy", "apply", "a.toml", "--for", "24h"])?;
    wait_for(&cli, "in-file", &[&target])?;
    wait_for(&cli, "applied", &[&target])?;
    let expires = policy(&cli, "applied")?.context("no policy")?["expires"].clone();
    ensure!(expires.is_u64(), "{expires}");
    first.kill()?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    all_on(&target)?.context("the functions are not on any more")?;
    // Mistakes of the file change nothing, also for a daemon that has not seen it without.
    fleet.write("file.toml", "name = \"in-file\"\n")?;
    let second = fleet.daemon()?;
    all_on(&target)?.context("the next daemon has switched functions off")?;
    let row = wait_for(&cli, "in-file", &[&target])?;
    ensure!(
        row["mistakes"]
            .as_array()
            .is_some_and(|all| !all.is_empty()),
        "{row}"
    );
    wait_for(&cli, "applied", &[&target])?;
    ensure!(policy(&cli, "applied")?.context("no policy")?["expires"] == expires);
    cli.ok(["snapshot", &target.pid().to_string(), "-o", "t.xtrace"])?;
    ensure_exact(&fleet.scene.path("t.xtrace"), &truth)?;
    // Another daemon finds the file gone.
    second.kill()?;
    fs::remove_file(fleet.scene.path("policies.d").join("file.toml"))?;
    let third = fleet.daemon()?;
    wait_for(&cli, "applied", &[&target])?;
    ensure!(policy(&cli, "in-file")?.is_none(), "{}", third.log());
    cli.ok(["policy", "remove", "applied"])?;
    ensure_as_compiled(&target)?;
    ensure!(
        cli.ok(["policy", "list"])?
            .contains("there are no policies")
    );
    let kept = crate::daemon_recovery::files_in(&fleet.scene.path("state"))?;
    ensure!(kept.is_empty(), "{kept:?}");
    Ok(())
}

/// Two policies have the union of their functions on. One that wants another mode says so.
#[test]
fn policies_for_one_process_are_merged() -> Result<()> {
    let fleet = Fleet::new()?;
    let target = fleet.spawn()?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    let apply = |name: &str, trace: &str| {
        let file = format!("{name}.toml");
        fs::write(fleet.scene.path(&file), fleet.policy(name, "", trace))?;
        cli.ok(["policy", "apply", &file, "--for", "1h"])
    };
    apply("one", "enable = \"work::p*\"\nmax_overhead = \"5%\"")?;
    wait_for(&cli, "one", &[&target])?;
    let one = sleds_on(&target)?;
    apply("two", "enable = \"*\"\nmax_overhead = \"2%\"")?;
    wait_for(&cli, "two", &[&target])?;
    let status = cli.json(["status"])?;
    let row = row_of(&status, target.pid())?.context("not attached")?;
    ensure!(one > 0 && row["mode"] == "profile", "{row}");
    ensure!(row["functions_on"] == row["functions"], "{row}");
    ensure!(
        row["budget"]["budget"]["max_overhead_ppm"] == 20_000,
        "{row}"
    );
    // One for this build of the program, and one for another.
    let id = row["modules"][0]["build_id"]
        .as_str()
        .context("no build id")?;
    for (name, id, matched) in [("this-build", &id[..12], 1), ("other-build", "00ff", 0)] {
        let text = fleet.policy(name, &format!("build_id = \"{id}\""), "enable = \"*\"");
        fs::write(fleet.scene.path("build.toml"), text)?;
        cli.ok(["policy", "apply", "build.toml", "--for", "1h"])?;
        let targets: &[&Target] = if matched == 1 { &[&target] } else { &[] };
        let row = wait_for(&cli, name, targets)?;
        ensure!(row["matched"] == matched, "{row}");
        cli.ok(["policy", "remove", name])?;
    }
    apply("three", "enable = \"*\"\nmode = \"stream\"")?;
    let row = wait_until(DEADLINE, "the third policy is refused", || {
        let row = policy(&cli, "three")?.context("no policy")?;
        Ok((row["refused"][0]["reason"] == "mode").then_some(row))
    })?;
    ensure!(row["traced"] == Value::from(Vec::<i32>::new()), "{row}");
    cli.ok(["policy", "remove", "two"])?;
    ensure!(sleds_on(&target)? == one);
    // Once the others are gone, the process is recorded as the third one wants it.
    cli.ok(["policy", "remove", "one"])?;
    wait_for(&cli, "three", &[&target])?;
    let status = cli.json(["status"])?;
    let row = row_of(&status, target.pid())?.context("not attached")?;
    ensure!(row["mode"] == "stream", "{row}");
    // What a changed policy wants replaces what it wanted before.
    apply("three", "enable = \"work::p*\"\nmode = \"count\"")?;
    wait_until(DEADLINE, "the policy has changed", || {
        let status = cli.json(["status"])?;
        let row = row_of(&status, target.pid())?.context("not attached")?;
        let is_changed = row["mode"] == "count" && row["functions_on"] != row["functions"];
        Ok((is_changed && row["functions_on"] != 0).then_some(()))
    })?;
    Ok(())
}

/// A client has the last word: what it detaches from is left alone, and what it has attached to
/// stays attached.
#[test]
fn clients_and_policies_respect_each_other() -> Result<()> {
    let fleet = Fleet::new()?;
    let [own, taken] = [fleet.spawn()?, fleet.spawn()?];
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    cli.ok(["attach", &own.pid().to_string(), "--mode", "flight"])?;
    let text = fleet.policy("service", "", "enable = \"*\"\nmode = \"flight\"");
    fs::write(fleet.scene.path("p.toml"), &text)?;
    cli.ok(["policy", "apply", "p.toml", "--for", "1h"])?;
    wait_for(&cli, "service", &[&own, &taken])?;
    cli.ok(["detach", &taken.pid().to_string()])?;
    let row = wait_for(&cli, "service", &[&own])?;
    ensure!(row["refused"][0]["reason"] == "not-attached", "{row}");
    ensure_as_compiled(&taken)?;
    let ran = cli.run(["policy", "apply", "p.toml"])?;
    ran.refused("policy")?;
    cli.ok(["policy", "remove", "service"])?;
    ensure!(sleds_on(&own)? == 0);
    let status = cli.json(["status"])?;
    ensure!(row_of(&status, own.pid())?.is_some(), "{status}");
    ensure!(row_of(&status, taken.pid())?.is_none(), "{status}");
    cli.run(["policy", "remove", "service"])?
        .refused("policy")?;
    cli.run(["policy", "show", "service"])?
        .failed(3, &["there is no policy service"])
}

/// Policies end by themselves, and only root and the daemon's user may see them.
#[test]
fn a_policy_expires_and_is_the_administrators() -> Result<()> {
    let fleet = Fleet::new()?;
    let target = fleet.spawn()?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    fs::write(
        fleet.scene.path("p.toml"),
        fleet.policy("short", "", "enable = \"*\""),
    )?;
    cli.ok(["policy", "apply", "p.toml", "--for", "2s"])?;
    if integration::is_root_for("a_policy_expires_and_is_the_administrators")? {
        let nobody = cli.as_user(NOBODY);
        for words in [
            &["policy", "list"][..],
            &["policy", "apply", "p.toml", "--for", "1h"],
            &["policy", "remove", "short"],
            &["policy", "reload"],
        ] {
            nobody.run(words)?.refused("permission")?;
        }
    }
    let row = wait_until(DEADLINE, "the policy expires", || {
        let row = policy(&cli, "short")?.context("no policy")?;
        Ok((row["state"] == "expired").then_some(row))
    })?;
    ensure!(row["matched"] == 0, "{row}");
    ensure_as_compiled(&target)?;
    let status = cli.json(["status"])?;
    ensure!(row_of(&status, target.pid())?.is_none(), "{status}");
    Ok(())
}

/// An attach to a process whose files do not answer holds up no other process.
#[test]
fn a_process_that_does_not_answer_holds_up_no_other() -> Result<()> {
    const TEST: &str = "a_process_that_does_not_answer_holds_up_no_other";
    let Some(mount) = integration::SilentMount::new(TEST)? else {
        return Ok(());
    };
    let fleet = Fleet::new()?;
    let program = fleet.scene.path("hung");
    integration::copy_program(&build(Fixture::Mappings)?, &program)?;
    let mut hung = Target::spawn_command(Command::new(program))?;
    hung.ask(&format!("map {}", mount.file().display()), "mapped")?;
    let folder = fleet.scene.path("*").display().to_string();
    let text = format!("name = \"all\"\n[match]\nexe = {folder:?}\n[trace]\nenable = \"*\"\n");
    fleet.write("all.toml", &text)?;
    let first = fleet.spawn()?;
    let daemon = fleet.daemon()?;
    // It ends before the daemon, whose threads it holds up.
    let _mount = mount;
    let cli = fleet.scene.with(&daemon)?;
    wait_for(&cli, "all", &[&first])?;
    let second = fleet.spawn()?;
    let row = wait_for(&cli, "all", &[&first, &second])?;
    ensure!(row["matched"].as_u64() >= Some(3), "{row}");
    cli.ok(["policy", "reload"])?;
    Ok(())
}

/// A program that waits for its functions keeps its policy, and an older process without sleds
/// takes no place.
#[test]
fn places_are_for_processes_that_can_be_traced() -> Result<()> {
    let fleet = Fleet::new()?;
    let without = fleet.scene.path("without-sleds");
    integration::copy_program(&build(Fixture::Plain)?, &without)?;
    let plain = Target::spawn_command(Command::new(&without))?;
    let target = fleet.spawn()?;
    let programs = [&without, &fleet.program].map(|program| program.display().to_string());
    let text = format!(
        "name = \"one\"\n[match]\nexe = {programs:?}\nmax_processes = 1\n[trace]\nenable = \
         \"no::such::function\"\n"
    );
    fleet.write("one.toml", &text)?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    let row = wait_for(&cli, "one", &[&target])?;
    let refused = rows(&row, "refused")?.iter();
    let mut refused = refused.filter(|row| row["pid"] == plain.pid());
    ensure!(
        refused
            .next()
            .is_some_and(|row| row["reason"] == "no-sleds"),
        "{row}"
    );
    // The other one is tried again and again.
    for _ in 0..10 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let row = policy(&cli, "one")?.context("no policy")?;
        ensure!(row["traced"] == Value::from(vec![target.pid()]), "{row}");
    }
    // Nor does another policy's end end it.
    let other = fleet.policy("other", "", "enable = \"*\"");
    fs::write(fleet.scene.path("other.toml"), other)?;
    cli.ok(["policy", "apply", "other.toml", "--for", "1h"])?;
    wait_for(&cli, "other", &[&target])?;
    cli.ok(["policy", "remove", "other"])?;
    ensure!(sleds_on(&target)? == 0);
    let status = cli.json(["status"])?;
    ensure!(row_of(&status, target.pid())?.is_some(), "{status}");
    wait_for(&cli, "one", &[&target])?;
    Ok(())
}

/// What happens to files while no daemon runs counts for the next one. A folder that cannot be read
/// changes nothing.
#[test]
fn files_that_change_while_no_daemon_runs_count() -> Result<()> {
    if !opens_map_files()? {
        // As above.
        return Ok(());
    }
    let fleet = Fleet::new()?;
    let target = fleet.spawn()?;
    fleet.write("a.toml", &fleet.policy("one", "", "enable = \"*\""))?;
    let first = fleet.daemon()?;
    let cli = fleet.scene.with(&first)?;
    wait_for(&cli, "one", &[&target])?;
    let all = sleds_on(&target)?;
    first.kill()?;
    // The folder may be written by others.
    let folder = fleet.scene.path("policies.d");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    let second = fleet.daemon()?;
    wait_for(&cli, "one", &[&target])?;
    ensure!(sleds_on(&target)? == all, "{}", second.log());
    let ran = cli.run(["status", "--check"])?;
    ran.failed(7, &["1 problem found"])?;
    ensure!(ran.out.contains("cannot read the policies"), "{ran:?}");
    cli.run(["policy", "reload"])?.refused("io")?;
    second.kill()?;
    // Another selection, in another file, beside one that claims the name.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    fs::remove_file(folder.join("a.toml"))?;
    fleet.write("b.toml", &fleet.policy("one", "", "enable = \"work::p*\""))?;
    let _third = fleet.daemon()?;
    wait_for(&cli, "one", &[&target])?;
    let fewer = sleds_on(&target)?;
    ensure!(0 < fewer && fewer < all, "{fewer} of {all}");
    fleet.write("a.toml", &fleet.policy("one", "", "enable = \"*\""))?;
    cli.ok(["policy", "reload"])?;
    let status = cli.ok(["policy", "status"])?;
    ensure!(status.contains("a policy \"one\" is in"), "{status}");
    ensure!(sleds_on(&target)? == fewer);
    // The file with the name is gone, and the other one takes its place.
    fs::remove_file(folder.join("b.toml"))?;
    cli.ok(["policy", "reload"])?;
    wait_until(DEADLINE, "the other file has its effect", || {
        Ok((sleds_on(&target)? == all).then_some(()))
    })
}

/// Files with every kind of mistake are told, and change nothing for a policy in force.
#[test]
fn a_hundred_files_with_mistakes_change_nothing() -> Result<()> {
    const FILES: usize = 100;
    let fleet = Fleet::new()?;
    let target = fleet.spawn()?;
    let good = fleet.policy("good", "", "enable = \"*\"");
    fleet.write("00-good.toml", &good)?;
    let daemon = fleet.daemon()?;
    let cli = fleet.scene.with(&daemon)?;
    wait_for(&cli, "good", &[&target])?;
    let folder = fleet.scene.path("policies.d");
    let wrong: Vec<Vec<u8>> = [
        // No TOML, and no text.
        "",
        "name",
        "[match",
        "name = \"\u{7f}\"",
        "= 1",
        "[trace]\n[trace]",
        // Names.
        "name = \"\"",
        "name = \"../x\"",
        "name = \"-x\"",
        "name = 7",
        "name = [\"x\"]",
        "name = \"good\"",
    ]
    .map(|head| {
        format!(
            "{head}\n{}",
            good.split_once('\n').map_or("", |(_, rest)| rest)
        )
    })
    .into_iter()
    .chain(
        [
            "mode = \"fast\"",
            "mode = 1",
            "arguments = 99",
            "arguments = \"2\"",
            "results = 1",
            "max_overhead = \"0%\"",
            "max_overhead = 2",
            "duty = \"5s/1s\"",
            "keep = \"*\"",
            "ring_size = \"3\"",
            "ring_size = 4096",
            "follow = true",
            "min_duration = \"-1s\"",
            "max_depth = 0",
            "one_in = -5",
            "except = [{ regex = \"(\" }]",
            "except = [1]",
            "except = { glob = 1 }",
            "inside = 5",
            "threads = {}",
            "unknown = 1",
            "max_overhead = \"2%\"\nduty = \"1s/10s\"",
            "mode = \"count\"\nmax_overhead = \"2%\"",
            "except = [{ glob = \"a\", regex = \"b\" }]",
            "mode = \"stream\"\nmode = \"count\"",
            "\"\\u0000\" = 1",
            "[trigger]",
            "[[trigger]]\nwhen = \"death\"",
            "[output]\n[[trigger]]\nwhen = \"demand\"",
            "[output]\n[[trigger]]\nwhen = \"duration(f) < 3\"\nlimit = \"9/1h\"",
            "[output]\n[[trigger]]\nwhen = \"call(f)\"\nlimit = \"3\"",
            "[output]\n[[trigger]]\nwhen = \"call(f)\"\nsnapshot = { after = \"1h\" }",
            "[output]\n[trigger]\nwhen = [\"event(7).a > 1\"]",
            "[output]\nevery = \"1ms\"",
            "[[trace]]",
        ]
        .map(|line| format!("{}{line}\n", good.replace("\"good\"", "\"other\""))),
    )
    .chain(
        [
            "unit = 5",
            "unit = [[]]",
            "user = \"no-such-user-here\"",
            "user = [1]",
            "cgroup = \"[\"",
            "command = \"\"",
            "container = \"{a\"",
            "max_processes = 0",
            "max_processes = -1",
            "max_processes = 1e99",
            "min_age = 5",
            "min_age = \"soon\"",
            "exe = \"/again\"",
            "expires = 2027-01-31",
            "\u{202e} = 1",
        ]
        .map(|line| {
            let other = good.replace("\"good\"", "\"other\"");
            other.replace("[match]\n", &format!("[match]\n{line}\n"))
        }),
    )
    .map(String::into_bytes)
    .chain([vec![0xff; 100], vec![b'#'; 2 << 20], vec![0; 1000]])
    .collect();
    for (number, bytes) in wrong.iter().cycle().take(FILES - 3).enumerate() {
        fs::write(folder.join(format!("{number:03}.toml")), bytes)?;
    }
    // No files at all.
    fs::create_dir(folder.join("folder.toml"))?;
    std::os::unix::fs::symlink("loop.toml", folder.join("loop.toml"))?;
    nix::unistd::mkfifo(&folder.join("fifo.toml"), nix::sys::stat::Mode::S_IRUSR)?;
    cli.ok(["policy", "reload"])?;
    let listed = cli.json(["policy", "list"])?;
    let all = rows(&listed, "policies")?;
    let mut right = all
        .iter()
        .filter(|row| row["mistakes"] == Value::Array(Vec::new()));
    ensure!(
        right.next().is_some_and(|row| row["name"] == "good"),
        "{listed:#}"
    );
    let further: Vec<_> = right.map(|row| row["file"].clone()).collect();
    ensure!(further.is_empty(), "these have no mistake: {further:?}");
    ensure!(all.len() == FILES + 1, "{} policies and files", all.len());
    wait_for(&cli, "good", &[&target])?;
    all_on(&target)?.context("not everything is on any more")?;
    cli.run(["status", "--check"])?
        .failed(7, &["100 problems found"])?;
    let text = cli.ok(["policy", "status"])?;
    ensure!(!text.contains(['\u{202e}', '\0']), "{text}");
    Ok(())
}

/// The policies of a user's daemon are for the user's processes, whatever they name.
#[test]
fn a_users_policy_is_for_the_users_processes() -> Result<()> {
    if !integration::is_root_for("a_users_policy_is_for_the_users_processes")? {
        return Ok(());
    }
    let fleet = Fleet::new()?;
    fleet.write("all.toml", &fleet.policy("all", "", "enable = \"*\""))?;
    let roots = fleet.spawn()?;
    let mut command = Command::new(&fleet.program);
    command.args(["--threads", "1"]).uid(NOBODY).gid(NOBODY);
    let own = Target::spawn_command(command)?;
    let xrayd = fleet.scene.path("xrayd");
    integration::copy_program(&integration::xrayd()?, &xrayd)?;
    // A place where the user may make the socket.
    chown(fleet.scene.path("."), Some(NOBODY), Some(NOBODY))?;
    let mut command = Command::new(xrayd);
    let folder = fleet.scene.path("policies.d");
    command
        .arg("--policies-dir")
        .arg(folder)
        .uid(NOBODY)
        .gid(NOBODY);
    let daemon = fleet.scene.daemon_by(command)?;
    let nobody = fleet.scene.with(&daemon)?.as_user(NOBODY);
    let row = wait_for(&nobody, "all", &[&own])?;
    ensure!(row["matched"] == 1, "{row}");
    ensure!(sleds_on(&roots)? == 0);
    ensure_as_compiled(&roots)
}

/// Processes that are followed from a policy's process go on in the next daemon, and end with the
/// policy, also when their parent has ended.
#[test]
fn followed_processes_belong_to_the_policy() -> Result<()> {
    if !opens_map_files()? {
        // As above.
        return Ok(());
    }
    let fleet = Fleet::new()?;
    let program = fleet.scene.path("family");
    integration::copy_program(&build(Fixture::Group)?, &program)?;
    let mut command = Command::new(&program);
    command.args(["--survives", "1"]);
    let mut root = Target::spawn_command(command)?;
    let path = program.display().to_string();
    // A child takes no place, because it is followed.
    let text = format!(
        "name = \"family\"\n[match]\nexe = {path:?}\nmax_processes = 1\n[trace]\nfollow = \
         \"fork\"\nenable = \"*\"\nmode = \"stream\"\n"
    );
    fleet.write("family.toml", &text)?;
    let first = fleet.daemon()?;
    let cli = fleet.scene.with(&first)?;
    wait_for(&cli, "family", &[&root])?;
    let child = child_of(&mut root)?;
    is_traced(&cli, child)?;
    let child_pid = i32::try_from(child)?;
    first.kill()?;
    let _second = fleet.daemon()?;
    wait_for(&cli, "family", &[&root])?;
    for _ in 0..10 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        ensure!(
            sleds_on_in(child_pid, &program)? > 0,
            "the child was let go"
        );
    }
    is_traced(&cli, child)?;
    let root_pid = root.pid();
    root.kill()?;
    wait_until(DEADLINE, "the first process is gone", || {
        let row = policy(&cli, "family")?.context("no policy")?;
        let traced = row["traced"].as_array().context("no list")?;
        Ok((!traced.contains(&Value::from(root_pid))).then_some(()))
    })?;
    fs::remove_file(fleet.scene.path("policies.d").join("family.toml"))?;
    cli.ok(["policy", "reload"])?;
    wait_until(DEADLINE, "the child is let go", || {
        let status = cli.json(["status"])?;
        let is_left = row_of(&status, child_pid)?.is_none_or(|row| row["state"] != "tracing");
        Ok((is_left && sleds_on_in(child_pid, &program)? == 0).then_some(()))
    })?;
    crate::scene::send(child, nix::sys::signal::Signal::SIGKILL)
}
