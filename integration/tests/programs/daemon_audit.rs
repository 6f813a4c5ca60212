//! The daemon's log and audit records of its callers, with hostile names in them.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, copy_into, wait_until};
use serde_json::Value;

use crate::scene::{NOBODY, Scene};

/// A hostile user's name for a directory, a program, and a function.
const FORGED: &str = "x\n<6>xrayd::session: attached uid=0 caller=1 pid=4711\u{1b}c";

/// The audit records in a log.
fn records(log: &str) -> Result<Vec<Value>> {
    let lines = log
        .lines()
        .filter_map(|line| line.strip_prefix("<6>audit: "));
    lines
        .map(|line| serde_json::from_str(line).with_context(|| format!("not JSON: {line}")))
        .collect()
}

#[test]
fn each_decision_is_recorded_and_no_name_forges_a_line() -> Result<()> {
    if !integration::is_root_for("each_decision_is_recorded_and_no_name_forges_a_line")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let daemon = scene.daemon_with(&["--log", "journal"])?;
    let root = scene.with(&daemon)?;
    let nobody = root.as_user(NOBODY);
    let dir = scene.path(FORGED);
    fs::create_dir(&dir)?;
    let mut command = Command::new(copy_into(Fixture::Counted, &dir)?);
    command
        .arg0(FORGED)
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/");
    let own = Target::spawn_command(command)?;
    let roots = Target::spawn(Fixture::Counted, [""; 0])?;
    let (own_pid, roots_pid) = (own.pid().to_string(), roots.pid().to_string());

    nobody.ok(["attach", &own_pid])?;
    nobody.run(["attach", &roots_pid])?.refused("permission")?;
    nobody.ok(["ps"])?;
    nobody.run(["enable", "--pid", &own_pid, "--glob", FORGED])?;
    nobody.ok(["detach", &own_pid])?;
    let expected = [
        ("attach", "granted", Value::Null),
        ("attach", "refused", "permission".into()),
        ("list-processes", "granted", Value::Null),
        ("enable", "granted", Value::Null),
        ("detach", "granted", Value::Null),
    ];
    let found = wait_until(DEADLINE, "all decisions are recorded", || {
        let found = records(&daemon.log())?;
        let all = expected.iter().all(|(operation, decision, reason)| {
            found.iter().any(|record| {
                record["operation"] == *operation
                    && record["decision"] == *decision
                    && record["reason"] == *reason
                    && record["uid"] == NOBODY
            })
        });
        Ok(all.then_some(found))
    })?;
    let with = |key: &str, value: &Value| {
        let mut records = found.iter();
        records.find(|record| &record[key] == value).cloned()
    };
    let refused = with("decision", &"refused".into()).context("a refusal")?;
    ensure!(
        refused["pids"] == serde_json::json!([roots.pid()]),
        "{refused}"
    );
    let enabled = with("operation", &"enable".into()).context("a selection")?;
    ensure!(enabled["what"] == format!("+glob:{FORGED}"), "{enabled}");

    // Each line of the log is the daemon's own.
    let log = daemon.log();
    for line in log.lines() {
        let own = ["<3>", "<4>", "<6>", "<7>"]
            .iter()
            .any(|level| line.starts_with(level));
        ensure!(
            own && !line.starts_with("<6>xrayd::session: attached uid=0"),
            "{line:?}"
        );
        ensure!(!line.contains('\u{1b}'), "{line:?}");
    }
    Ok(())
}
