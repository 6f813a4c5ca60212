//! `xrayctl policy`.

use std::fs;

use anyhow::{Result, ensure};
use integration::{Fixture, Target};
use serde_json::json;

use crate::scene::{Scene, rows, sleds_on};

/// All mistakes are shown with their lines. Without one, the processes that the policy matches are.
#[test]
fn a_policy_is_checked_and_nothing_is_changed() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut targets = [
        Target::spawn(Fixture::Counted, ["--threads", "1"])?,
        Target::spawn(Fixture::Counted, ["--threads", "1"])?,
        Target::spawn(Fixture::Budget, [""; 0])?,
    ];
    let program = targets[0].program().display().to_string();
    let policy = format!(
        "name = \"counted\"\n[match]\nexe = {program:?}\nmax_processes = 1\n[trace]\nenable = \"*\"\n"
    );
    fs::write(scene.path("good.toml"), &policy)?;
    let checked = cli.json(["policy", "check", "good.toml"])?;
    ensure!(
        checked["name"] == "counted" && checked["mistakes"] == json!([]),
        "{checked}"
    );
    let matches = rows(&checked, "matches")?;
    // Other tests run the same program.
    for target in &targets[..2] {
        let mut its = matches.iter().filter(|row| row["pid"] == target.pid());
        ensure!(
            its.next().is_some_and(|row| row["state"] == "ready"),
            "{checked}"
        );
    }
    ensure!(
        matches.iter().all(|row| row["pid"] != targets[2].pid()),
        "{checked}"
    );
    let within = matches.iter().filter(|row| row["is_within"] == true);
    ensure!(within.count() == 1, "{checked}");
    let text = cli.ok(["policy", "check", "good.toml"])?;
    ensure!(text.contains("counted: no mistake; it matches"), "{text}");
    ensure!(
        text.contains("would not be traced: max_processes is 1"),
        "{text}"
    );

    let wrong = policy.replace("exe", "exes");
    let wrong = wrong.replace("\"*\"", "[\"*\", { modul = \"a\" }]");
    fs::write(scene.path("bad.toml"), wrong)?;
    let ran = cli.run(["policy", "check", "bad.toml"])?;
    ran.failed(2, &["the policy has 4 mistakes"])?;
    for part in [
        "bad.toml:3:1: unknown key \"exes\"; did you mean exe?",
        "bad.toml:6:16: a rule has one of function, glob, regex, module and source",
        "bad.toml:6:18: unknown key \"modul\"; did you mean module?",
        "  enable = [\"*\", { modul = \"a\" }]\n                 ^",
    ] {
        ensure!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    let ran = cli.run(["policy", "check", "none.toml"])?;
    ran.failed(1, &["cannot read none.toml"])?;
    for target in &mut targets {
        ensure!(sleds_on(target)? == 0);
        target.still_running()?;
    }
    Ok(())
}
