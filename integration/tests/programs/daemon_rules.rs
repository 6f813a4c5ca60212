//! Rules of access: users with rights to processes of other users.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target, build, is_root_for};
use nix::sys::signal::Signal;

use crate::scene::{Cli, Daemon, NOBODY, Scene, ensure_as_compiled, row_of, rows, sleds_on};

/// The user of the service.
const OWNER: u32 = 1;
/// A user to whom no rule applies.
const STRANGER: u32 = 3;

/// A daemon with rules of access, and a service of another user.
struct Rules {
    scene: Scene,
    program: PathBuf,
}

impl Rules {
    fn new() -> Result<Self> {
        let scene = Scene::public()?;
        let program = scene.path("service");
        integration::copy_program(&build(Fixture::Values)?, &program)?;
        // Each user may write files there.
        fs::create_dir(scene.path("out"))?;
        fs::set_permissions(scene.path("out"), fs::Permissions::from_mode(0o777))?;
        Ok(Self { scene, program })
    }

    fn daemon(&self) -> Result<Daemon> {
        let path = |name| {
            anyhow::Ok(
                self.scene
                    .path(name)
                    .to_str()
                    .context("no text")?
                    .to_owned(),
            )
        };
        let (state, rules) = (path("state")?, path("access.toml")?);
        self.scene
            .daemon_with(&["--state-dir", &state, "--access-file", &rules])
    }

    fn service(&self) -> Result<Target> {
        let mut command = Command::new(&self.program);
        command.uid(OWNER).gid(OWNER).current_dir("/");
        Target::spawn_command(command)
    }

    /// A rule for the service.
    fn rule(&self, to: &str, verbs: &str) -> String {
        let program = self.program.display().to_string();
        format!(
            "[[allow]]\nto = {{ {to} }}\nverbs = [{verbs}]\n\
             match = {{ exe = {program:?}, user = \"{OWNER}\" }}\n"
        )
    }

    fn write(&self, text: &str) -> Result<()> {
        let path = self.scene.path("access.toml");
        fs::write(&path, text)?;
        Ok(fs::set_permissions(
            path,
            fs::Permissions::from_mode(0o644),
        )?)
    }
}

/// Records two rounds of the service with these values. Returns what the trace holds.
fn record(
    (cli, daemon): (&Cli, &Daemon),
    target: &mut Target,
    values: &[&str],
) -> Result<serde_json::Value> {
    // Another user may have the functions on, so the record of the call tells when they are on.
    let enabled = || {
        let log = daemon.log();
        let lines = log.lines().filter(|line| {
            line.contains(&format!("\"uid\":{NOBODY},"))
                && line.contains("\"operation\":\"enable\"")
        });
        lines.count()
    };
    let before = enabled();
    let pid = target.pid().to_string();
    let command = ["record", &pid, "--function", "two", "-o", "out/v.xtrace"];
    let command = [&command[..], &["--force"], values].concat();
    let mut running = cli.start(command)?;
    running.until("an entry and an exit are on", || {
        Ok((enabled() > before && sleds_on(target)? >= 2).then_some(()))
    })?;
    ensure!(target.ask("go 2", "done ")? == "done 2");
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    Ok(cli.json(["info", "out/v.xtrace"])?["events"].take())
}

/// A group that may profile may not trace. A stranger may do nothing, and does not see the process.
#[test]
fn an_on_call_group_profiles_the_service_of_another_user() -> Result<()> {
    if !is_root_for("an_on_call_group_profiles_the_service_of_another_user")? {
        return Ok(());
    }
    let rules = Rules::new()?;
    // Users of tests are in the group of their own number.
    rules.write(&rules.rule(&format!("group = \"{NOBODY}\""), "\"profile\""))?;
    let daemon = rules.daemon()?;
    let root = rules.scene.with(&daemon)?;
    let (oncall, stranger) = (root.as_user(NOBODY), root.as_user(STRANGER));
    let target = rules.service()?;
    // A process of the same user that the rule does not cover.
    let mut command = Command::new(integration::copy_into(
        Fixture::Values,
        &rules.scene.path("."),
    )?);
    command.uid(OWNER).gid(OWNER).current_dir("/");
    let other = Target::spawn_command(command)?;
    let (pid, other_pid) = (target.pid().to_string(), other.pid().to_string());

    let listed = oncall.json(["ps"])?;
    ensure!(rows(&listed, "processes")?.len() == 1 && row_of(&listed, target.pid())?.is_some());
    ensure!(rows(&stranger.json(["ps"])?, "processes")?.is_empty());
    for (who, pid) in [(&stranger, &pid), (&oncall, &other_pid)] {
        for command in [
            &["doctor", pid][..],
            &["attach", pid, "--mode", "profile"],
            &["functions", "--pid", pid],
            &["status", "--pid", pid],
        ] {
            let ran = who.run(command)?;
            ran.refused("permission")
                .with_context(|| format!("{command:?}"))?;
        }
    }
    oncall.run(["attach", &pid])?.refused("permission")?;
    oncall
        .run(["attach", &pid, "--mode", "profile", "--follow", "fork"])?
        .refused("permission")?;
    oncall.ok(["attach", &pid, "--mode", "profile"])?;
    oncall.ok(["enable", "--pid", &pid, "--function", "two"])?;
    oncall
        .run(["enable", "--pid", &pid, "--function", "two", "--args", "1"])?
        .refused("permission")?;
    oncall
        .run(["mode", "stream", "--pid", &pid])?
        .refused("permission")?;
    oncall
        .run(["snapshot", "--pid", &pid, "-o", "out/s.xtrace"])?
        .refused("permission")?;
    oncall
        .run(["record", &pid, "--all", "-o", "out/r.xtrace"])?
        .refused("permission")?;
    oncall.ok(["profile", "--pid", &pid, "--duration", "100ms", "--json"])?;
    stranger.run(["detach", &pid])?.refused("permission")?;

    // Rules that are gone give nothing, and do not keep the owner from its process.
    rules.write("")?;
    root.ok(["access", "reload"])?;
    oncall
        .run(["status", "--pid", &pid])?
        .refused("permission")?;
    root.as_user(OWNER).ok(["detach", &pid])?;
    ensure_as_compiled(&target)
}

/// Without the rights to arguments and to data, traces come without these, though another user
/// records them.
#[test]
fn values_are_left_out_of_what_a_user_without_that_right_reads() -> Result<()> {
    if !is_root_for("values_are_left_out_of_what_a_user_without_that_right_reads")? {
        return Ok(());
    }
    let rules = Rules::new()?;
    rules.write(&rules.rule(&format!("user = \"{NOBODY}\""), "\"trace\""))?;
    let daemon = rules.daemon()?;
    let root = rules.scene.with(&daemon)?;
    let reader = root.as_user(NOBODY);
    let mut target = rules.service()?;
    let pid = target.pid().to_string();

    let values = ["--args", "2", "--retval"];
    let refused = reader.run(
        [
            &["record", &pid, "--function", "two", "-o", "out/n"],
            &values[..],
        ]
        .concat(),
    )?;
    refused.refused("permission")?;
    // Root has the values recorded, and reads them.
    root.ok(["attach", &pid])?;
    root.ok([&["enable", "--pid", &pid, "--function", "two"], &values[..]].concat())?;
    ensure!(target.ask("go 2", "done ")? == "done 2");
    root.ok(["snapshot", "--pid", &pid, "-o", "out/root.xtrace"])?;
    let all = root.json(["info", "out/root.xtrace"])?["events"].take();
    ensure!(all["entries_with_arguments"].as_u64() > Some(0), "{all}");
    // The reader has the same calls without values, in a snapshot and in a stream.
    reader.ok(["snapshot", "--pid", &pid, "-o", "out/reader.xtrace"])?;
    let seen = reader.json(["info", "out/reader.xtrace"])?["events"].take();
    ensure!(
        seen["entries"] == all["entries"]
            && seen["entries_with_arguments"] == 0
            && seen["exits_with_result"] == 0,
        "{seen}, not {all}"
    );
    let streamed = record((&reader, &daemon), &mut target, &[])?;
    ensure!(
        streamed["entries"].as_u64() > Some(0) && streamed["entries_with_arguments"] == 0,
        "{streamed}"
    );
    root.ok(["detach", &pid])?;

    // With the right, the reader records values, too. The audit names the rule.
    let tracing = "\"trace\", \"arguments\"";
    rules.write(&format!(
        "\n{}",
        rules.rule(&format!("user = \"{NOBODY}\""), tracing)
    ))?;
    root.ok(["access", "reload"])?;
    let recorded = record((&reader, &daemon), &mut target, &values)?;
    ensure!(
        recorded["entries_with_arguments"] == recorded["entries"]
            && recorded["exits_with_result"].as_u64() > Some(0),
        "{recorded}"
    );
    let checked = reader.json(["access", "check", "--pid", &pid])?;
    let answer = |verb: &str| -> Result<_> {
        let mut answers = rows(&checked, "answers")?.iter();
        let answer = answers.find(|answer| answer["verb"] == verb);
        Ok(answer.context("no answer")?["is_allowed"].clone())
    };
    ensure!(
        answer("arguments")? == true && answer("events")? == false,
        "{checked}"
    );
    let log = daemon.log();
    ensure!(log.contains("\"decision\":\"granted\",\"rule\":2"), "{log}");
    ensure_as_compiled(&target)
}

/// A broken file keeps the old rules in force, also for the next daemon, and says so.
#[test]
fn a_broken_file_keeps_the_old_rules() -> Result<()> {
    if !is_root_for("a_broken_file_keeps_the_old_rules")? {
        return Ok(());
    }
    let rules = Rules::new()?;
    rules.write(&rules.rule(&format!("user = \"{NOBODY}\""), "\"list\""))?;
    let target = rules.service()?;
    let pid = target.pid().to_string();
    let daemon = rules.daemon()?;
    let root = rules.scene.with(&daemon)?;
    let reader = root.as_user(NOBODY);
    reader.ok(["functions", "--pid", &pid])?;
    rules.write("[[allow]]\nto = { user = \"0\" }\nverbs = [\"spy\"]\n")?;
    let reloaded = root.run(["access", "reload"])?;
    let mistake = "access.toml:3:10: there is no verb \"spy\"";
    ensure!(
        reloaded.code == Some(2)
            && reloaded.out.contains(mistake)
            && reloaded.err.contains("changes nothing"),
        "{reloaded:?}"
    );
    reader.ok(["functions", "--pid", &pid])?;
    reader.run(["access", "reload"])?.refused("permission")?;
    reader.run(["access", "show"])?.refused("permission")?;
    reader
        .run(["access", "check", "--as", "0"])?
        .refused("permission")?;
    let checked = root.run(["status", "--check"])?;
    ensure!(
        checked.code == Some(7) && checked.out.contains("rules of access: "),
        "{checked:?}"
    );
    daemon.kill()?;
    let daemon = rules.daemon()?;
    let (root, reader) = (
        rules.scene.with(&daemon)?,
        rules.scene.with(&daemon)?.as_user(NOBODY),
    );
    reader.ok(["functions", "--pid", &pid])?;
    rules.write("")?;
    root.ok(["access", "reload"])?;
    reader
        .run(["functions", "--pid", &pid])?
        .refused("permission")?;
    root.ok(["status", "--check"])?;
    Ok(())
}
